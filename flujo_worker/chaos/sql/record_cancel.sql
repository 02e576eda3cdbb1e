-- After the acknowledgement: nothing may be merged from now on.
INSERT INTO flujo_chaos_cancels (run_id, merges)
SELECT %(run)s::text, count(*) FROM flujo_attempts WHERE run_id = %(run)s::text AND status = 'succeeded'
ON CONFLICT (run_id) DO NOTHING;
