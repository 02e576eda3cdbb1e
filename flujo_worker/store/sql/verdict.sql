-- Why an outcome was not merged, or that it had been: the retry after a lost answer finds its own work done.
SELECT
    a.status, a.fence, r.status AS run_status, r.cancel_requested_at IS NOT NULL AS cancelled,
    s.version AS version
FROM flujo_attempts a
JOIN flujo_runs r ON r.id = a.run_id
JOIN flujo_scopes s ON s.run_id = a.run_id AND s.address = a.address
WHERE a.key = %(key)s;
