-- Runs that are to be wound down: someone asked, their deadline is over, or they have passed a limit, which is their error. One whose row
-- somebody else has locked would only hold the others up.
SELECT r.id, r.error IS NOT NULL AS failed,
       coalesce(r.deadline_at > now(), true) OR (SELECT true FROM flujo_inputs i WHERE i.run_id = r.id AND i.kind = 'cancel' LIMIT 1) IS TRUE AS cancelled
FROM flujo_runs r
WHERE r.status IN ('queued', 'running', 'parked') AND (r.cancel_requested_at IS NOT NULL OR r.deadline_at <= now())
ORDER BY r.created_at LIMIT %(limit)s FOR NO KEY UPDATE OF r SKIP LOCKED;
