INSERT INTO flujo_chaos_effects (id, run_id, key, fence, claimed_at) VALUES (%(id)s, %(run)s, %(key)s, %(fence)s, %(claimed_at)s)
ON CONFLICT (id) DO NOTHING;
