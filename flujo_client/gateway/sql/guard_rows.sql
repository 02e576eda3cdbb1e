SELECT guard, model, from_file::text, edits::text, coalesce(extract(epoch FROM cleared_at)::float8, 0) AS cleared_at
FROM flujo_model_guards ORDER BY guard, model;
