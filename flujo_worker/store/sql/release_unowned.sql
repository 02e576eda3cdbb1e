-- Attempts that point to this worker and that it does not work on: their outcome was refused or could not be reported, or its process is gone,
-- and `how`. Without a worker they count as lost, so a sweep sends them again, or fails them when that has happened too often.
WITH forgotten AS (
    SELECT key FROM flujo_attempts
    WHERE worker = %(worker)s AND ended_at IS NULL AND available_at >= (SELECT live_since FROM flujo_sweeps)
      AND status = 'running' AND NOT (key = ANY(%(kept)s::text[])) AND started_at < now() - make_interval(secs => %(older_s)s)
    ORDER BY key FOR UPDATE SKIP LOCKED
)
UPDATE flujo_attempts a
SET worker = NULL, loss = jsonb_build_object('worker', CASE WHEN %(how)s::text IS NOT NULL THEN a.worker END, 'how', %(how)s::text, 'at', now())
FROM forgotten WHERE a.key = forgotten.key RETURNING a.key;
