-- A run that waits for a child run that waits for a person is paused too. Two functions and no table: code from before calls neither.

-- A run with the child runs that it waits for, however deep they are: those that have a place in their parent.
CREATE FUNCTION flujo_kin(run text) RETURNS SETOF text LANGUAGE sql STABLE ROWS 2 AS $$
    WITH RECURSIVE kin (id) AS (
        SELECT run UNION ALL SELECT c.id FROM kin JOIN flujo_runs c ON c.parent_run = kin.id AND c.parent_address IS NOT NULL
    )
    SELECT id FROM kin
$$;

-- Whether a live run is shown as paused, which is in no row: a question is open, and only work that waits for a lane could run.
CREATE FUNCTION flujo_is_paused(run text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM flujo_kin(run) k JOIN flujo_attempts a ON a.run_id = k WHERE a.status = 'paused')
       AND NOT EXISTS (
           SELECT FROM flujo_kin(run) k JOIN flujo_attempts a ON a.run_id = k
           WHERE a.status IN ('ready', 'queued', 'running') AND (a.status <> 'ready' OR a.available_at < 'infinity'))
$$;
