-- Live child runs for which their parent no longer waits. Background runs are not among them. It is enough that the parent was asked to stop.
SELECT r.id
FROM flujo_runs r JOIN flujo_runs p ON p.id = r.parent_run JOIN flujo_scopes s ON s.run_id = r.parent_run AND s.address = r.parent_address
WHERE r.status IN ('queued', 'running', 'parked') AND r.parent_run IS NOT NULL AND (s.status <> 'open' OR p.cancel_requested_at IS NOT NULL)
ORDER BY r.created_at LIMIT %(limit)s;
