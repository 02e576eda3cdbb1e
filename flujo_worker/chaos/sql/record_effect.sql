INSERT INTO flujo_chaos_effects (id, run_id, key, fence, step) VALUES (%(id)s, %(run)s, %(key)s, %(fence)s, %(step)s)
ON CONFLICT (id) DO NOTHING;
