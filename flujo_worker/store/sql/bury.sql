-- End a worker whose process is gone, as another one of its machine has observed. That is a fact, unlike an expired lease, so its attempts are
-- released at once, whether or not this process may judge leases. An attempt that ran alone and was lost too often that way is left to poisoned.sql.
WITH ended AS (
    UPDATE flujo_workers SET ended_at = now(), lease_until = least(lease_until, now()) WHERE id = %(id)s AND ended_at IS NULL
    RETURNING id
),
held AS (
    SELECT a.key FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
    WHERE a.worker = (SELECT id FROM ended) AND a.ended_at IS NULL AND a.status = 'running' AND NOT (a.alone AND a.losses_alone >= %(max_lost)s)
      AND r.ended_at IS NULL AND r.status <> 'parked' AND r.cancel_requested_at IS NULL
    ORDER BY a.key FOR UPDATE OF a SKIP LOCKED
),
freed AS (
    UPDATE flujo_attempts a SET status = 'ready', worker = NULL, available_at = now(), sends = 0, waits_for = NULL, waits_since = NULL,
        loss = jsonb_build_object('worker', a.worker, 'how', NULL, 'at', now()),
        losses = least(a.losses, 1000000) + 1, losses_alone = least(a.losses_alone, 1000000) + a.alone::int
    FROM held WHERE a.key = held.key RETURNING a.run_id, a.key, a.fence, a.losses, a.losses_alone
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT f.run_id, f.key, f.fence, 'attempt.lost', 'warning', jsonb_build_object('worker', %(id)s::text, 'losses', f.losses, 'losses_alone', f.losses_alone)
    FROM freed f
)
SELECT key FROM freed;
