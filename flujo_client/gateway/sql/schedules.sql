-- The schedules, or one of them.
SELECT coalesce(p.name, s.reference) AS pipeline,
-- include schedule
FROM flujo_schedules s LEFT JOIN flujo_pipelines p ON p.fingerprint = s.fingerprint
WHERE %(schedule)s::text IS NULL OR s.name = %(schedule)s::text ORDER BY s.name;
