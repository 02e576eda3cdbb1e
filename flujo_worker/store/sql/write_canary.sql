INSERT INTO flujo_value_keys (id, canary) VALUES (%(id)s::text, %(canary)s::text)
ON CONFLICT (id) DO UPDATE SET canary = excluded.canary, written_at = now();
