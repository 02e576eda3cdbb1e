-- The remainder of a budget when an attempt asked for its reservation, for its trace; null without a limit. Older code leaves both null. A
-- refused attempt keeps a row too, which holds nothing.

ALTER TABLE flujo_reservations
    ADD COLUMN before_usd    numeric,
    ADD COLUMN before_tokens bigint;

-- A pipeline's latest runs: what its attempts have cost lately is what the next are expected to.
CREATE INDEX flujo_runs_reference ON flujo_runs (reference, created_at DESC);
