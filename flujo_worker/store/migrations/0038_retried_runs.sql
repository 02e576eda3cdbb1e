-- Which run retried an ended one last: people see that it was dealt with, and a second retry asks. Code from before does not write it.
ALTER TABLE flujo_runs ADD COLUMN retried_as text;
UPDATE flujo_runs o SET retried_as = n.id
FROM (
    SELECT DISTINCT ON (coalesce(forked_from, retry_of)) coalesce(forked_from, retry_of) AS of_run, id, created_at FROM flujo_runs
    WHERE forked_from IS NOT NULL OR retry_of IS NOT NULL
    ORDER BY coalesce(forked_from, retry_of), created_at DESC
) n
WHERE o.id = n.of_run AND o.ended_at <= n.created_at;

-- The runs that people look for are few among many that succeeded. Writes wait while the index is built.
CREATE INDEX flujo_runs_unsuccessful ON flujo_runs (created_at DESC) WHERE status IN ('failed', 'cancelled', 'expired');
