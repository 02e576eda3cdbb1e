-- The merge of an ordinary step: the attempt's end, the scope's move, what comes next, the story and the run's end, or nothing at
-- all. Every other merge is conclude_tree.sql; this one is the same with one scope and one row, because arrays would cost each step.
-- Locks in the one order: attempt → scope → run. Each part asks whether the one before did something, which also makes them
-- happen in this order; rows are named by parameters, so that every plan is a look-up. A late outcome changes nothing but the
-- spend. FOR KEY SHARE meets the canceller's FOR UPDATE: once a cancel has committed, no merge can (ADR 0006).
-- An attempt that closes without its scope and run following is an error that undoes the statement: flujo_undo() raises it.
-- Who waits for the run's end is notified of it by the commit, and of nothing else: a commit that notifies holds a lock of the whole database (ADR 0065).
WITH won AS (
    UPDATE flujo_attempts
    SET status = %(status)s::text, reason = %(reason)s::text, output = %(result)s::bytea, error = %(error)s::jsonb, metadata = %(metadata)s::jsonb,
        latency_s = %(latency_s)s::float8, ended_at = now()
    WHERE key = %(key)s::text AND status = 'running' AND fence = %(fence)s::int
      AND (%(claimed_at)s::bigint IS NULL OR (extract(epoch FROM started_at) * 1000000)::bigint = %(claimed_at)s::bigint)
    RETURNING 1
),
moved AS (
    UPDATE flujo_scopes s
    SET cursor = %(cursor)s::int, status = %(scope_status)s::text, version = s.version + %(merges)s::int,
        output = coalesce(%(output)s::bytea, s.output), context = coalesce(%(context)s::bytea, s.context),
        closed_by = CASE WHEN %(scope_status)s::text <> 'open' THEN %(key)s::text END,
        closed_at = CASE WHEN %(scope_status)s::text <> 'open' THEN now() END
    WHERE s.run_id = %(run)s::text AND s.address = %(address)s::text AND s.status = 'open' AND s.version = %(version)s::int
      AND EXISTS (SELECT 1 FROM won)
    RETURNING 1
),
live AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.id = %(run)s::text AND r.status IN ('running', 'parked') AND r.cancel_requested_at IS NULL
      AND EXISTS (SELECT 1 FROM moved)
    FOR KEY SHARE OF r
),
merged AS (SELECT 1 AS place, live.id AS run, %(key)s::text AS key, %(fence)s::int AS fence FROM live),
next AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at, guidance)
    SELECT %(next_key)s::text, live.id, %(next_address)s::text, %(next_step)s::text, %(next_number)s::int, %(next_kind)s::text, %(next_queue)s::text,
           now() + make_interval(secs => %(next_after_s)s::float8), %(next_guidance)s::text
    FROM live WHERE %(next_key)s::text IS NOT NULL
),
begun AS (
    INSERT INTO flujo_contexts (run_id, place, context)
    SELECT live.id, %(cursor)s::int,
           CASE WHEN %(begins_anew)s::bool THEN coalesce(
               %(context)s::bytea,
               (SELECT s.context FROM flujo_scopes s WHERE s.run_id = %(run)s::text AND s.address = %(address)s::text)
           ) END
    FROM live WHERE %(begins)s::bool
    ON CONFLICT DO NOTHING
),
story AS (
-- include story
),
spent AS (
-- include spend
),
ended AS (
-- include end_of_run
)
SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM won) THEN false WHEN EXISTS (SELECT 1 FROM live) THEN true ELSE flujo_undo() END AS merged;
