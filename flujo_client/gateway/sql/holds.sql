-- The reasons why a live run, or a child run it waits for, makes no progress: each parked run with its reason, and each queue in which one
-- of their attempts waits, or will wait, for a worker, with what else it waits for unless another attempt is at work.
WITH kin AS (
    SELECT r.id, r.status, r.reason FROM flujo_kin(%(run)s::text) k JOIN flujo_runs r ON r.id = k
),
waiting AS (
    SELECT a.run_id, a.queue, a.step, a.waits_for, p.name AS at_limit, extract(epoch FROM a.available_at - now())::float8 AS in_s,
           a.number > 1 AND a.available_at > now() AS is_retry
    FROM kin k JOIN flujo_attempts a ON a.run_id = k.id
    LEFT JOIN flujo_permits p ON p.key = a.key AND p.fence IS NULL
    WHERE k.status IN ('queued', 'running') AND a.ended_at IS NULL AND a.status IN ('ready', 'queued') AND a.available_at < 'infinity'
),
working AS (
    SELECT EXISTS (SELECT 1 FROM kin k JOIN flujo_attempts a ON a.run_id = k.id WHERE a.ended_at IS NULL AND a.status = 'running') AS some
)
SELECT k.id AS run, k.reason, NULL::text AS queue, NULL::text AS step, NULL::jsonb AS wait, NULL::float8 AS in_s
FROM kin k WHERE k.status = 'parked'
UNION ALL
SELECT w.run_id, NULL, w.queue, min(w.step), CASE
           WHEN working.some THEN NULL
           WHEN w.at_limit IS NOT NULL THEN jsonb_build_object('for', 'limit', 'limit', w.at_limit, 'at_once', l.at_once, 'in_use', (
               SELECT count(*) FROM flujo_permits u JOIN flujo_attempts a ON a.key = u.key AND a.fence = u.fence AND a.status = 'running'
               WHERE u.name = w.at_limit AND u.fence IS NOT NULL
           ))
           WHEN w.waits_for IS NOT NULL AND min(w.in_s) > 0 THEN
               jsonb_build_object('for', split_part(w.waits_for, ' ', 1), 'model', substr(w.waits_for, strpos(w.waits_for, ' ') + 1))
           WHEN w.is_retry THEN jsonb_build_object('for', 'retry')
       END, min(w.in_s)
FROM waiting w CROSS JOIN working LEFT JOIN flujo_limits l ON l.name = w.at_limit
GROUP BY w.run_id, w.queue, w.waits_for, w.at_limit, w.is_retry, l.at_once, working.some
ORDER BY run, queue NULLS FIRST;
