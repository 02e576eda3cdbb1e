-- Admission of runs (ADR 43): which gates a run has to pass, which places it holds, and where it waits. A run without gates has a row in none of
-- these tables. Code from before continues to work: it ends such a run without admitting the next one, which a sweep of newer code does.

ALTER TABLE flujo_runs ADD COLUMN gates jsonb;  -- null: it passes none

-- A gate is locked while it is decided who passes. `turns`: how far each of its queues has come.
CREATE TABLE flujo_gates (
    name       text PRIMARY KEY,
    turns      jsonb NOT NULL DEFAULT '{}',
    touched_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- A run that was admitted holds a place until its end, or until a time.
CREATE TABLE flujo_gate_places (
    gate      text NOT NULL,
    run_id    text NOT NULL,
    is_window boolean NOT NULL DEFAULT false,
    until     timestamptz,
    PRIMARY KEY (gate, run_id)
);
CREATE INDEX flujo_gate_places_run ON flujo_gate_places (run_id);

-- A run that was recorded and not admitted, in one queue of the gate that had no room when it was last looked at.
CREATE TABLE flujo_waiting_runs (
    run_id     text PRIMARY KEY,
    key        text NOT NULL,  -- of its first attempt
    gate       text NOT NULL,
    flow       text NOT NULL,
    most       integer,
    priority   smallint NOT NULL,
    arrived    bigint GENERATED ALWAYS AS IDENTITY,
    not_before timestamptz
);
CREATE INDEX flujo_waiting_runs_queue ON flujo_waiting_runs (gate, flow, priority, arrived);

-- What a run waits for that was not admitted yet, in words; null for any other.
CREATE FUNCTION flujo_waits_for(run text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT w.gate || coalesce(': ' || (
        SELECT count(*) FROM flujo_gate_places p WHERE p.gate = w.gate AND (p.until IS NULL OR p.until > now())
    ) || ' of ' || w.most || ' places are taken', '')
    FROM flujo_waiting_runs w WHERE w.run_id = run
$$;
