SELECT xid::text || '-' || id AS cursor, id, at, run_id, attempt, name, level, data FROM flujo_events
WHERE run_id IS NULL AND at >= now() - make_interval(secs => %(seconds)s) ORDER BY xid DESC, id DESC LIMIT %(limit)s;
