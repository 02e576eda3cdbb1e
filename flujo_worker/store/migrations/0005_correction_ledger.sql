-- The correction ledger: a row for each accepted repair, under the names that its readers know (M-178). A project that did not turn it
-- on writes nothing here and reads nothing.

CREATE TABLE flujo_correction_ledger (
    id                      bigint GENERATED ALWAYS AS IDENTITY,
    timestamp               timestamptz NOT NULL DEFAULT now(),
    run_id                  text NOT NULL REFERENCES flujo_runs ON DELETE CASCADE,
    attempt                 text NOT NULL,
    fence                   integer NOT NULL,
    step_name               text NOT NULL,
    agent_id                text,
    provider_model          text,
    schema_hash             text,
    coercion_policy_version text NOT NULL,
    stage                   text NOT NULL,
    repair_depth            integer NOT NULL,
    transforms_applied      jsonb NOT NULL,
    latency_ms_saved        double precision NOT NULL,
    PRIMARY KEY (run_id, id)
);
CREATE INDEX flujo_correction_ledger_recent ON flujo_correction_ledger (timestamp);
