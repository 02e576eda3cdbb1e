INSERT INTO flujo_chaos_effects (id, run_id, key, claim_id) VALUES (%(id)s, %(run)s, %(key)s, %(claim_id)s)
ON CONFLICT (id) DO NOTHING;
