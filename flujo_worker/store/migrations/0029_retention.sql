-- Retention: which ended runs are old enough to be deleted is looked up by pipeline, status and age, and whoever moves `pruned_at` deletes, so
-- that a fleet of any size deletes at one pace. Code from before reads and writes none of this. Writes wait while the index is built.
ALTER TABLE flujo_sweeps ADD COLUMN pruned_at timestamptz NOT NULL DEFAULT '-infinity';
CREATE INDEX flujo_runs_ended ON flujo_runs (name, status, ended_at) WHERE ended_at IS NOT NULL AND parent_run IS NULL;

-- A run with all its child runs, however deep they are, those in the background too: what is kept and deleted together.
CREATE FUNCTION flujo_family(run text) RETURNS SETOF text LANGUAGE sql STABLE ROWS 2 AS $$
    WITH RECURSIVE family (id) AS (
        SELECT run UNION ALL SELECT c.id FROM family JOIN flujo_runs c ON c.parent_run = family.id
    )
    SELECT id FROM family
$$;
