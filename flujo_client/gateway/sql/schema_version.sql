-- The schema of the database, and the oldest one whose code works with it. Before migration 27 that was not stored.
SELECT coalesce(max(v.version), 0) AS version, coalesce(max((to_jsonb(v) ->> 'oldest')::int), 0) AS oldest FROM flujo_schema_version v;
