-- Live attempts by status, those that sleep or wait for an event apart; those of runs that wait for admission count as runs.
SELECT CASE WHEN status = 'paused' THEN 'for_events' WHEN status = 'ready' AND waits_for = 'sleep' AND available_at > now() THEN 'sleeping' ELSE status END AS status,
       count(*) AS count, extract(epoch FROM now() - min(created_at))::float8 AS oldest_s
FROM flujo_attempts
WHERE ended_at IS NULL AND (status IN ('ready', 'queued', 'running') OR status = 'paused' AND question ->> 'event' IS NOT NULL)
  AND (available_at = 'infinity' OR available_at - interval '100 years' < now())
GROUP BY 1
UNION ALL SELECT 'waiting', count(*), extract(epoch FROM now() - min(r.created_at))::float8
FROM flujo_waiting_runs w JOIN flujo_runs r ON r.id = w.run_id AND r.ended_at IS NULL HAVING count(*) > 0;
