-- Traces are exported from rows, in the order of their ends (ADR 55). Workers of schema 4 neither export nor wait for it.
-- index: flujo_runs_export ON flujo_runs (ended_at) WHERE ended_at IS NOT NULL
-- index: flujo_scopes_export ON flujo_scopes (closed_at) WHERE closed_at IS NOT NULL
-- index: flujo_units_export ON flujo_units (settled_at) WHERE settled_at IS NOT NULL

CREATE TABLE flujo_exports (
    id        boolean PRIMARY KEY DEFAULT true CHECK (id),
    worker    text,
    looked_at timestamptz,
    positions jsonb NOT NULL DEFAULT '{}',
    refused   bigint NOT NULL DEFAULT 0,
    lost      bigint NOT NULL DEFAULT 0
);
INSERT INTO flujo_exports DEFAULT VALUES;
