SELECT id FROM flujo_runs WHERE metadata ->> 'chaos' = %(monkey)s AND ended_at IS NULL ORDER BY id;
