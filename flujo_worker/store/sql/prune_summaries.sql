DELETE FROM flujo_deleted_runs WHERE id = ANY(ARRAY(
    SELECT d.id FROM flujo_deleted_runs d
    WHERE d.ended_at < now() - make_interval(secs => %(older_s)s::float8) ORDER BY d.ended_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED
));
