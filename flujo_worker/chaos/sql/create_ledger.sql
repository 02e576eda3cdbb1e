-- Effects of steps, and the progress of cancelled runs when their cancel was acknowledged. Not tables of the engine.
CREATE TABLE IF NOT EXISTS flujo_chaos_effects (
    id       uuid PRIMARY KEY,
    run_id   text NOT NULL,
    key      text NOT NULL,
    claim_id uuid NOT NULL,
    at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS flujo_chaos_effects_key ON flujo_chaos_effects (key);
CREATE TABLE IF NOT EXISTS flujo_chaos_cancels (
    run_id text PRIMARY KEY,
    merges integer NOT NULL
);
