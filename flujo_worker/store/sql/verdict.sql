-- Why an outcome was not merged now, or that it was merged before: the retry after a lost answer finds its own work done.
SELECT a.status, a.reason, a.fence, a.claim_id::text, r.status AS run_status, r.cancel_requested_at IS NOT NULL AS cancelled
FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id WHERE a.key = %(key)s;
