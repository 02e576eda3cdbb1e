SELECT id, at, run_id, attempt, name, level, data FROM flujo_events
WHERE run_id = %(run)s AND id > %(after)s ORDER BY id LIMIT %(limit)s;
