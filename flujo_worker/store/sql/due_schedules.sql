SELECT s.name, s.reference, coalesce(p.name, s.reference) AS pipeline, s.fingerprint, s.body, s.timing::text AS timing, s.tenant, s.overlap, s.catch_up, s.is_paused, s.slot_at, s.due_at, s.last_slot,
       s.last_run, s.last_error, s.failing_since, now() AS now
FROM flujo_schedules s LEFT JOIN flujo_pipelines p ON p.fingerprint = s.fingerprint
WHERE NOT s.is_paused AND s.due_at <= now() ORDER BY s.due_at, s.name LIMIT %(limit)s::int;
