-- Live attempts by status, but the first ones of runs that wait for their admission: these are counted as runs.
SELECT status, count(*) AS count, extract(epoch FROM now() - min(created_at))::float8 AS oldest_s
FROM flujo_attempts
WHERE ended_at IS NULL AND status IN ('ready', 'queued', 'running') AND (available_at = 'infinity' OR available_at - interval '100 years' < now())
GROUP BY status
UNION ALL
SELECT 'waiting', count(*), extract(epoch FROM now() - min(r.created_at))::float8
FROM flujo_waiting_runs w JOIN flujo_runs r ON r.id = w.run_id AND r.ended_at IS NULL HAVING count(*) > 0;
