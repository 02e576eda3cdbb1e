SELECT input, output FROM flujo_runs WHERE id = %(run)s AND %(key)s::text IS NULL
UNION ALL SELECT input, output FROM flujo_attempts WHERE key = %(key)s AND run_id = %(run)s;
