-- The live workers, their slots by queue and how many of those are busy, and the number of queued attempts before each of `keys` in its queue.
-- A parked run's attempt is ready, not queued. Of a very long queue, only its beginning is counted.
WITH live AS MATERIALIZED (
    SELECT key, queue, status, worker, created_at FROM flujo_attempts
    WHERE ended_at IS NULL AND available_at <= now() AND status IN ('queued', 'running') ORDER BY available_at LIMIT %(most)s::int
),
alive AS (
    SELECT w.id, w.slots, CASE WHEN w.stop_requested_at IS NULL THEN w.queues ELSE '{}' END AS queues,
           (SELECT count(*) FROM live l WHERE l.status = 'running' AND l.worker = w.id) AS busy
    FROM flujo_workers w WHERE w.lease_until > now() AND w.ended_at IS NULL AND w.slots > 0
),
queues AS (
    SELECT q.name, sum(w.slots) AS slots, sum(w.busy) AS busy FROM alive w CROSS JOIN LATERAL unnest(w.queues) AS q (name) GROUP BY q.name
),
line AS (
    SELECT key, row_number() OVER (PARTITION BY queue ORDER BY created_at, key) - 1 AS ahead FROM live WHERE status = 'queued'
)
SELECT (SELECT count(*)::int FROM alive) AS workers, (SELECT count(*)::int FROM alive WHERE queues IS NULL) AS unreported,
       (SELECT coalesce(jsonb_object_agg(name, jsonb_build_array(slots, busy)), '{}') FROM queues) AS queues,
       (SELECT coalesce(jsonb_object_agg(key, ahead), '{}') FROM line WHERE key = ANY(%(keys)s::text[])) AS ahead;
