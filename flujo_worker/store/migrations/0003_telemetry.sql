-- The calls of durable attempts, each on record (ADR 53); counters that retention does not take back; and how far traces are exported from rows, in
-- the order of their ends (ADR 55). Workers of schema 2 neither read nor write any of it: the first of schema 3 catches up with the counters.
-- index: flujo_attempts_recent ON flujo_attempts (ended_at) WHERE ended_at IS NOT NULL
-- index: flujo_runs_export ON flujo_runs (ended_at) WHERE status IN ('succeeded', 'failed', 'cancelled', 'expired')
-- index: flujo_scopes_export ON flujo_scopes (closed_at) WHERE closed_at IS NOT NULL
-- index: flujo_units_export ON flujo_units (settled_at) WHERE settled_at IS NOT NULL
-- index: flujo_budgets_today ON flujo_budgets (right(scope, 11)) WHERE starts_with(scope, 'tenant:')

DROP INDEX IF EXISTS flujo_budgets_tenants;

CREATE TABLE flujo_units (
    run_id        text NOT NULL,
    place         text NOT NULL,
    digest        bytea NOT NULL,
    nth           integer NOT NULL,
    operation     text NOT NULL,
    effect        text CHECK (effect IN ('keyed', 'once')),
    key           text NOT NULL,
    fence         integer NOT NULL,
    claim_id      uuid NOT NULL,
    tries         integer NOT NULL DEFAULT 1,
    began_at      timestamptz NOT NULL DEFAULT now(),
    asked         bytea,
    settled_at    timestamptz,
    answer        bytea,
    input_tokens  bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    requests      integer NOT NULL DEFAULT 0,
    cost_usd      double precision NOT NULL DEFAULT 0,
    model         text,
    PRIMARY KEY (run_id, place, digest, nth)
) WITH (fillfactor = 80);
ALTER TABLE flujo_units ALTER COLUMN answer SET STORAGE EXTERNAL;

-- Requests of durable steps that providers answer in batches (ADR 56).
CREATE TABLE flujo_batches (
    id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    pool     text NOT NULL,
    key      text,
    claim_id uuid,
    began_at timestamptz NOT NULL DEFAULT now(),
    due_at   timestamptz NOT NULL,
    handle   jsonb
);
CREATE INDEX flujo_batches_due ON flujo_batches (pool, due_at);

CREATE TABLE flujo_batch_requests (
    id       text PRIMARY KEY,
    run_id   text NOT NULL,
    place    text NOT NULL,
    pool     text NOT NULL,
    batch    uuid,
    asked_at timestamptz NOT NULL DEFAULT now(),
    live_at  timestamptz NOT NULL,
    size     integer NOT NULL,
    body     bytea,
    result   bytea
);
CREATE INDEX flujo_batch_requests_waiting ON flujo_batch_requests (pool, asked_at) WHERE batch IS NULL AND result IS NULL;
CREATE INDEX flujo_batch_requests_batch ON flujo_batch_requests (batch) WHERE batch IS NOT NULL;
CREATE INDEX flujo_batch_requests_run ON flujo_batch_requests (run_id, place);

ALTER TABLE flujo_attempts ADD COLUMN units_from integer, ADD COLUMN pauses integer NOT NULL DEFAULT 0;
ALTER TABLE flujo_sweeps ADD COLUMN tallied_to timestamptz NOT NULL DEFAULT now();

CREATE TABLE flujo_tallies (
    name   text NOT NULL,
    labels jsonb NOT NULL,
    value  double precision NOT NULL,
    PRIMARY KEY (name, labels)
) WITH (fillfactor = 50);

CREATE TABLE flujo_exports (
    id        boolean PRIMARY KEY DEFAULT true CHECK (id),
    worker    text,
    looked_at timestamptz,
    positions jsonb NOT NULL DEFAULT '{}',
    refused   bigint NOT NULL DEFAULT 0,
    lost      bigint NOT NULL DEFAULT 0
);
INSERT INTO flujo_exports DEFAULT VALUES;

-- Events that are sent to runs (ADR 58).
ALTER TABLE flujo_inputs
    ADD COLUMN name text, ADD COLUMN digest text,
    DROP CONSTRAINT flujo_inputs_kind_check, ADD CONSTRAINT flujo_inputs_kind_check CHECK (kind IN ('answer', 'cancel', 'retry', 'fork', 'event'));
CREATE UNIQUE INDEX flujo_inputs_event ON flujo_inputs (run_id, name, note) WHERE name IS NOT NULL;
CREATE INDEX flujo_inputs_buffered ON flujo_inputs (run_id, name, id) WHERE kind = 'event' AND acted_at IS NULL;

-- Pipelines that run at certain times (ADR 60).
CREATE TABLE flujo_schedules (
    name          text PRIMARY KEY,
    reference     text NOT NULL,
    fingerprint   text NOT NULL,
    body          bytea NOT NULL,
    timing        jsonb NOT NULL,
    tenant        text NOT NULL,
    overlap       text NOT NULL,
    catch_up      text NOT NULL,
    is_paused     boolean NOT NULL DEFAULT false,
    slot_at       timestamptz,
    due_at        timestamptz,
    last_slot     timestamptz,
    last_run      text,
    last_error    text,
    failing_since timestamptz,
    changed_at    timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE flujo_schedules ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX flujo_schedules_due ON flujo_schedules (due_at) WHERE NOT is_paused;

-- from schema.sql: flujo_owe_pause flujo_due flujo_counted flujo_totals flujo_waiting flujo_sizes
