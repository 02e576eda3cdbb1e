SELECT status, count(*) AS count, extract(epoch FROM now() - min(created_at))::float8 AS oldest_s
FROM flujo_attempts WHERE ended_at IS NULL AND status IN ('ready', 'queued', 'running') GROUP BY status;
