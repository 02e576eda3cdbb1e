SELECT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.key = %(key)s::text AND a.run_id = r.id AND a.ended_at IS NULL) AS is_live
FROM flujo_runs r WHERE r.id = %(run)s::text;
