-- Summaries of runs that retention deletes, if `retention.keep_summaries` is set (ADR 40). Older code deletes runs without a row here.
CREATE TABLE flujo_deleted_runs (
    id         text PRIMARY KEY,
    name       text NOT NULL,  -- of the pipeline
    tenant     text NOT NULL,
    status     text NOT NULL,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at   timestamptz NOT NULL,
    parent_run text,
    tokens     bigint NOT NULL,
    cost_usd   float8 NOT NULL
);
-- The newest are listed first, and the oldest are deleted first.
CREATE INDEX flujo_deleted_runs_ended ON flujo_deleted_runs (ended_at);
