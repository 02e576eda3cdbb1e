-- The names of pipelines with ended or live runs: the index gives one after the other, without a look at all runs of each.
WITH RECURSIVE n AS (
    (SELECT name FROM flujo_runs WHERE ended_at IS NOT NULL AND parent_run IS NULL ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT r.name FROM flujo_runs r WHERE r.ended_at IS NOT NULL AND r.parent_run IS NULL AND r.name > n.name ORDER BY r.name LIMIT 1)
    FROM n WHERE n.name IS NOT NULL
)
(SELECT name FROM n WHERE name IS NOT NULL LIMIT 500)
UNION
(SELECT name FROM flujo_runs WHERE status IN ('queued', 'running', 'parked') LIMIT 500)
ORDER BY name;
