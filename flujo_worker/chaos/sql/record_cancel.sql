-- After the acknowledgement: nothing may be merged from now on. A failover meanwhile may have lost the cancel.
INSERT INTO flujo_chaos_cancels (run_id, merges)
SELECT %(run)s::text, (SELECT count(*) FROM flujo_attempts WHERE run_id = %(run)s::text AND status = 'succeeded')
FROM flujo_runs WHERE id = %(run)s::text AND (cancel_requested_at IS NOT NULL OR %(lost_before)s::float8 < %(asked_at)s::float8)
ON CONFLICT (run_id) DO NOTHING;
