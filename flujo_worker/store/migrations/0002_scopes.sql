-- Scopes below the root: containers and what runs in them, fan-outs and their lanes. Older code continues to work: every column is null or
-- has a constant default, and no row is rewritten.

ALTER TABLE flujo_scopes
    ADD COLUMN parent   text,
    ADD COLUMN kind     text    NOT NULL DEFAULT 'sequence',
    ADD COLUMN step     text,
    ADD COLUMN name     text,
    ADD COLUMN place    integer NOT NULL DEFAULT 0,
    ADD COLUMN lanes    jsonb   NOT NULL DEFAULT '{}',
    ADD COLUMN waiting  boolean NOT NULL DEFAULT false,
    ADD COLUMN aborted  boolean NOT NULL DEFAULT false,
    ADD COLUMN held     boolean NOT NULL DEFAULT false,
    ADD COLUMN patch    bytea,
    ADD COLUMN error    jsonb,
    ADD COLUMN metadata jsonb   NOT NULL DEFAULT '{}';
ALTER TABLE flujo_scopes ALTER COLUMN patch SET STORAGE EXTERNAL;
-- Children in their order, for joins; whether one is open, and which waits for a lane, without reading all the others.
CREATE INDEX flujo_scopes_children ON flujo_scopes (run_id, parent, place) WHERE parent IS NOT NULL;
CREATE INDEX flujo_scopes_open ON flujo_scopes (run_id, parent) WHERE status = 'open' AND parent IS NOT NULL;
CREATE INDEX flujo_scopes_held ON flujo_scopes (run_id, parent, place) WHERE held;
CREATE INDEX flujo_scopes_waiting ON flujo_scopes (opened_at) WHERE waiting AND status = 'open';
CREATE INDEX flujo_scopes_aborted ON flujo_scopes (run_id) WHERE aborted;

-- The answers of user code and rows during decisions, for a replay without them.
ALTER TABLE flujo_attempts ADD COLUMN answers jsonb;
