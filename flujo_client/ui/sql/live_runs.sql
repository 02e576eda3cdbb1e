-- The live runs that were recorded first, of which most are stuck; and how many there are.
SELECT id, created_at, count(*) OVER () AS of_all FROM flujo_runs
WHERE status IN ('queued', 'running', 'parked') AND parent_run IS NULL ORDER BY created_at, id LIMIT %(limit)s::int;
