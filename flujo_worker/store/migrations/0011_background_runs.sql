-- Runs in the background: child runs that no place in their parent waits for, so that workers of the version before take none for an
-- orphan. New columns are null, and no row is rewritten; no run is in the background yet, so the indexes are built of nothing.

ALTER TABLE flujo_runs
    ADD COLUMN launched_with bytea,   -- the context it began with, to begin again from
    ADD COLUMN retry_of      text,    -- the run that this one starts again
    ADD COLUMN retries       integer NOT NULL DEFAULT 0;
ALTER TABLE flujo_runs ALTER COLUMN launched_with SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX flujo_runs_retry ON flujo_runs (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX flujo_runs_background ON flujo_runs (created_at DESC) WHERE parent_run IS NOT NULL AND parent_address IS NULL;
