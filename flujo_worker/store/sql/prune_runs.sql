-- Delete whole families of runs that hold_aged_runs.sql has locked, with all their data except budgets; a summary stays in a row if
-- requested, with totals as in runs.sql. This statement sees child runs that began after that statement's snapshot and before its locks.
-- Deletions that a crash loses are repeated, so this does not wait for the disk.
WITH setting AS (SELECT set_config('synchronous_commit', 'off', true)),
gone AS MATERIALIZED (
    SELECT f.id, r.created_at, r.ended_at FROM setting CROSS JOIN flujo_runs r CROSS JOIN LATERAL flujo_family(r.id) AS f (id)
    WHERE r.id = ANY(%(runs)s::text[]) AND r.parent_run IS NULL
      AND NOT EXISTS (SELECT 1 FROM flujo_family(r.id) AS k (id) WHERE k.id <> ALL(%(runs)s::text[]) OFFSET 0)
),
summaries AS (
    INSERT INTO flujo_deleted_runs (id, name, tenant, status, created_at, started_at, ended_at, parent_run, tokens, cost_usd)
    SELECT r.id, r.name, r.tenant, r.status, r.created_at, r.started_at, r.ended_at, r.parent_run, coalesce(t.tokens, 0), coalesce(t.cost_usd, 0)
    FROM gone JOIN flujo_runs r ON r.id = gone.id CROSS JOIN LATERAL (
        SELECT sum(x.tokens)::bigint AS tokens, sum(x.cost_usd)::float8 AS cost_usd
        FROM flujo_kin(r.id) k CROSS JOIN LATERAL (
            SELECT sum(s.input_tokens + s.output_tokens) AS tokens, sum(s.cost_usd) AS cost_usd FROM flujo_spends s WHERE s.run_id = k
        ) x
    ) t
    WHERE %(is_summarized)s::bool
    ON CONFLICT (id) DO NOTHING
),
lost AS (
    UPDATE flujo_exports e SET lost = e.lost + g.runs
    FROM (SELECT count(*) AS runs FROM gone WHERE gone.ended_at > (
        SELECT min((v.value ->> 0)::timestamptz) FROM flujo_exports e, jsonb_each(e.positions) v)) g WHERE g.runs > 0
),
reservations AS (DELETE FROM flujo_reservations v USING gone JOIN flujo_attempts a ON a.run_id = gone.id WHERE v.key = a.key),
scopes AS (DELETE FROM flujo_scopes s USING gone WHERE s.run_id = gone.id),
attempts AS (DELETE FROM flujo_attempts a USING gone WHERE a.run_id = gone.id),
contexts AS (DELETE FROM flujo_contexts c USING gone WHERE c.run_id = gone.id),
spends AS (DELETE FROM flujo_spends s USING gone WHERE s.run_id = gone.id),
units AS (DELETE FROM flujo_units u USING gone WHERE u.run_id = gone.id),
requests AS (DELETE FROM flujo_batch_requests b USING gone WHERE b.run_id = gone.id),
batches AS (DELETE FROM flujo_batches b WHERE b.due_at < now() - interval '30 days'),
inputs AS (DELETE FROM flujo_inputs i USING gone WHERE i.run_id = gone.id),
hook_calls AS (DELETE FROM flujo_hook_calls h USING gone WHERE h.run_id = gone.id),
-- Events have the time of workers' clocks; a day is more than those differ.
events AS (DELETE FROM flujo_events e USING gone WHERE e.run_id = gone.id AND e.at >= gone.created_at - interval '1 day')
DELETE FROM flujo_runs r USING gone WHERE r.id = gone.id RETURNING r.id;
