SELECT id, status FROM flujo_runs WHERE id = ANY(%(runs)s::text[]);
