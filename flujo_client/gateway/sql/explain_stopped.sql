-- The attempt that the error of each failed run is of; if its row, which may be older, names none, one with the same error. For a cancelled or
-- expired run, one that was stopped with it: rather one that had started.
SELECT r.id AS run_id, a.key, a.address, a.step, a.number, a.kind, a.status, a.created_at, a.queue, a.started_at, a.ended_at, a.worker,
       a.losses, a.losses_alone, a.loss, a.error AS fault, a.latency_s, a.question, a.waits_for
FROM flujo_runs r
CROSS JOIN LATERAL (
    SELECT * FROM flujo_attempts x WHERE x.key = r.failed_key
    UNION ALL
    (SELECT * FROM flujo_attempts x
     WHERE r.failed_key IS NULL AND x.run_id = r.id AND CASE
         WHEN r.status = 'failed' THEN x.status = 'failed'
              AND (x.error ->> 'type_name', x.error ->> 'message') = (r.error ->> 'type_name', r.error ->> 'message')
         ELSE x.status = 'cancelled' AND x.kind IN ('step', 'resume') AND x.ended_at >= least(r.cancel_requested_at, r.deadline_at) END
     ORDER BY x.started_at IS NOT NULL DESC, x.ended_at DESC LIMIT 1)
    LIMIT 1
) a
WHERE r.id = ANY(%(runs)s::text[]) AND r.status IN ('failed', 'cancelled', 'expired');
