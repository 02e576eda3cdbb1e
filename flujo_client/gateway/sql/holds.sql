-- The reasons why a live run, or a child run it waits for, makes no progress: each parked run with its reason, and each queue in which one
-- of their attempts waits, or will wait, for a worker.
SELECT r.id AS run, r.reason, NULL::text AS queue
FROM flujo_kin(%(run)s::text) k JOIN flujo_runs r ON r.id = k WHERE r.status = 'parked'
UNION ALL
SELECT DISTINCT a.run_id, NULL, a.queue
FROM flujo_kin(%(run)s::text) k JOIN flujo_runs r ON r.id = k AND r.status IN ('queued', 'running')
JOIN flujo_attempts a ON a.run_id = k
WHERE a.ended_at IS NULL AND a.status IN ('ready', 'queued') AND a.available_at < 'infinity'
ORDER BY run, queue NULLS FIRST;
