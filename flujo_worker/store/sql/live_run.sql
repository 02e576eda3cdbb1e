SELECT 1 FROM flujo_runs WHERE id = %(run)s AND ended_at IS NULL;
