-- The worker processes of the last day. Whether a process is slowed down is in the last event about that, and which keys it lacks in the last
-- one about those; each later incarnation has the same id before the `~`.
SELECT w.id, w.host, w.pid, w.build, w.slots, w.started_at, w.lease_until > now() AS is_live, w.stop_requested_at IS NOT NULL AS is_stopping, w.queues,
       s.slowed, l.lacks, w.code_build, w.lease_until, w.ended_at
FROM flujo_workers w
LEFT JOIN (
    SELECT DISTINCT ON (split_part(data ->> 'worker', '~', 1)) split_part(data ->> 'worker', '~', 1) AS worker,
           CASE name WHEN 'worker.slowed' THEN data - 'worker' END AS slowed
    FROM flujo_events WHERE run_id IS NULL AND name IN ('worker.slowed', 'worker.recovered') AND at > now() - interval '1 day'
    ORDER BY split_part(data ->> 'worker', '~', 1), at DESC, id DESC
) s ON s.worker = split_part(w.id, '~', 1)
LEFT JOIN (
-- include lacking_workers
) l ON l.worker = split_part(w.id, '~', 1)
WHERE w.lease_until > now() - interval '1 day' ORDER BY w.started_at DESC;
