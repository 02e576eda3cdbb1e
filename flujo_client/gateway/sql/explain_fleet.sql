-- The live workers, their slots by queue and how many of those are busy, and the number of queued attempts before each of `keys` in its queue.
-- A worker that lacks a key takes no work: its slots do not count, and `lacking` has the keys that the workers of each queue lack.
-- A parked run's attempt is ready, not queued. Of a very long queue, only its beginning is counted.
WITH live AS MATERIALIZED (
    SELECT key, queue, status, worker, created_at FROM flujo_attempts
    WHERE ended_at IS NULL AND available_at <= now() AND status IN ('queued', 'running') ORDER BY available_at LIMIT %(most)s::int
),
keyless AS (
-- include lacking_workers
),
alive AS (
    SELECT w.id, w.slots, CASE WHEN w.stop_requested_at IS NULL THEN w.queues ELSE '{}' END AS queues,
           (SELECT count(*) FROM live l WHERE l.status = 'running' AND l.worker = w.id) AS busy, k.lacks
    FROM flujo_workers w LEFT JOIN keyless k ON k.worker = split_part(w.id, '~', 1)
    WHERE w.lease_until > now() AND w.ended_at IS NULL AND w.slots > 0
),
consuming AS (SELECT q.name, w.slots, w.busy, w.lacks FROM alive w CROSS JOIN LATERAL unnest(w.queues) AS q (name)),
queues AS (SELECT name, sum(slots) AS slots, sum(busy) AS busy FROM consuming WHERE lacks IS NULL GROUP BY name),
lacking AS (SELECT name, jsonb_agg(DISTINCT lacks) AS lacks FROM consuming WHERE lacks IS NOT NULL GROUP BY name),
line AS (SELECT key, row_number() OVER (PARTITION BY queue ORDER BY created_at, key) - 1 AS ahead FROM live WHERE status = 'queued')
SELECT (SELECT count(*)::int FROM alive) AS workers, (SELECT count(*)::int FROM alive WHERE queues IS NULL AND lacks IS NULL) AS unreported,
       (SELECT coalesce(jsonb_object_agg(name, jsonb_build_array(slots, busy)), '{}') FROM queues) AS queues,
       (SELECT coalesce(jsonb_object_agg(name, lacks), '{}') FROM lacking) AS lacking,
       (SELECT coalesce(jsonb_object_agg(key, ahead), '{}') FROM line WHERE key = ANY(%(keys)s::text[])) AS ahead;
