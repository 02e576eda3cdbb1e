-- The code that each attempt was performed with. Versions are content-addressed, few and never changed: a new one is stored when a process
-- first performs a step with it. Older code writes none of this and continues to work; every column may be null, and no row is
-- rewritten.

CREATE TABLE flujo_code (
    digest     text PRIMARY KEY,
    parts      jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE flujo_attempts ADD COLUMN code text;

-- Why a run is parked, for workers: at which step it waits for the code that its conversation was held with. Null: for its plan.
ALTER TABLE flujo_runs ADD COLUMN parked_for jsonb;
