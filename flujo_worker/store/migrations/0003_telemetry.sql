-- The calls of durable attempts, each on record (ADR 53); counters that retention does not take back; and how far traces are exported from rows, in
-- the order of their ends (ADR 55). Workers of schema 2 neither read nor write any of it: the first of schema 3 catches up with the counters.
-- index: flujo_attempts_recent ON flujo_attempts (ended_at) WHERE ended_at IS NOT NULL
-- index: flujo_runs_export ON flujo_runs (ended_at) WHERE status IN ('succeeded', 'failed', 'cancelled', 'expired')
-- index: flujo_scopes_export ON flujo_scopes (closed_at) WHERE closed_at IS NOT NULL
-- index: flujo_budgets_today ON flujo_budgets (right(scope, 11)) WHERE starts_with(scope, 'tenant:')
-- index: flujo_runs_cancelled ON flujo_runs (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL
-- index: flujo_runs_deadlines ON flujo_runs (deadline_at) WHERE deadline_at IS NOT NULL AND ended_at IS NULL
-- index: flujo_waiting_runs_due ON flujo_waiting_runs (gate, flow, (coalesce(not_before, '-infinity')), priority, arrived)

DROP INDEX IF EXISTS flujo_budgets_tenants;
DROP INDEX IF EXISTS flujo_waiting_runs_queue;
-- from schema.sql: flujo_units flujo_batches flujo_batch_requests flujo_tallies flujo_exports flujo_schedules

ALTER TABLE flujo_attempts ADD COLUMN units_from integer, ADD COLUMN pauses integer NOT NULL DEFAULT 0;
ALTER TABLE flujo_sweeps ADD COLUMN tallied_to timestamptz NOT NULL DEFAULT now();

-- Events that are sent to runs (ADR 58).
ALTER TABLE flujo_inputs
    ADD COLUMN name text, ADD COLUMN digest text,
    DROP CONSTRAINT flujo_inputs_kind_check, ADD CONSTRAINT flujo_inputs_kind_check CHECK (kind IN ('answer', 'cancel', 'retry', 'fork', 'event'));
CREATE UNIQUE INDEX flujo_inputs_event ON flujo_inputs (run_id, name, note) WHERE name IS NOT NULL;
CREATE INDEX flujo_inputs_buffered ON flujo_inputs (run_id, name, id) WHERE kind = 'event' AND acted_at IS NULL;

-- from schema.sql: flujo_owe_pause flujo_due flujo_counted flujo_totals flujo_waiting flujo_sizes
