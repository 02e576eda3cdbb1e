-- A run's state, as far as it decides whether it may continue under another plan; workers read the same.
SELECT r.reference, r.fingerprint, r.status, r.root, r.queue,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(s.address, s.kind, s.status, s.cursor, s.version) ORDER BY s.address COLLATE "C"), '[]')
        FROM flujo_scopes s WHERE s.run_id = r.id) AS scopes,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(a.key, a.address, a.step, a.number, a.kind, a.status, a.fence) ORDER BY a.key COLLATE "C"), '[]')
        FROM flujo_attempts a WHERE a.run_id = r.id) AS attempts
FROM flujo_runs r WHERE r.id = %(run)s::text;
