-- Whether a worker was started before the run took its present plan, or before that was recorded: its code is not the newer one.
SELECT w.started_at < coalesce(p.adopted_at, p.created_at) AS is_older
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint JOIN flujo_workers w ON w.id = %(worker)s::text
WHERE r.id = %(run)s::text;
