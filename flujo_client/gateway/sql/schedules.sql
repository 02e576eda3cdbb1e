-- The schedules, or one of them.
SELECT
-- include schedule
FROM flujo_schedules s WHERE %(schedule)s::text IS NULL OR s.name = %(schedule)s::text ORDER BY s.name;
