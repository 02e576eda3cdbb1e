-- Runs to wind down: a stop was requested, their deadline is over, or they have passed a limit, which is their error. Locked rows are
-- skipped, so that they do not delay the others. Two indexes have these runs alone, however many are live.
SELECT r.id, r.error IS NOT NULL AS failed,
       coalesce(r.deadline_at > now(), true) OR (SELECT true FROM flujo_inputs i WHERE i.run_id = r.id AND i.kind = 'cancel' LIMIT 1) IS TRUE AS cancelled
FROM flujo_runs r
WHERE r.id = ANY(ARRAY(
    (SELECT c.id FROM flujo_runs c WHERE c.cancel_requested_at IS NOT NULL AND c.ended_at IS NULL ORDER BY c.cancel_requested_at LIMIT 10 * %(limit)s::int)
    UNION
    (SELECT d.id FROM flujo_runs d WHERE d.deadline_at <= now() AND d.ended_at IS NULL ORDER BY d.deadline_at LIMIT 10 * %(limit)s::int)
)) AND r.ended_at IS NULL AND (r.cancel_requested_at IS NOT NULL OR r.deadline_at <= now())
ORDER BY r.created_at LIMIT %(limit)s::int FOR NO KEY UPDATE OF r SKIP LOCKED;
