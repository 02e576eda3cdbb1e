SELECT count(*) AS count, extract(epoch FROM now() - min(created_at))::float8 AS oldest_s FROM flujo_hook_calls;
