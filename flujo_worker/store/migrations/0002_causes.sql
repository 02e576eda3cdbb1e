-- Why a run is where it is, as data. Nullable columns without a default are added without a look at the rows; workers of schema 1 leave them empty.
-- index: flujo_runs_forked ON flujo_runs (forked_from) WHERE forked_from IS NOT NULL

ALTER TABLE flujo_attempts
    ADD COLUMN waits_since timestamptz, ADD COLUMN room text, ADD COLUMN loss jsonb, ADD COLUMN input bytea, ADD COLUMN answer text,
    ALTER COLUMN input SET STORAGE EXTERNAL;
ALTER TABLE flujo_runs ADD COLUMN failed_key text, ADD COLUMN parked jsonb, ADD COLUMN replaced_by text;
ALTER TABLE flujo_spends ADD COLUMN model text;
ALTER TABLE flujo_inputs
    DROP CONSTRAINT flujo_inputs_kind_check, ADD CONSTRAINT flujo_inputs_kind_check CHECK (kind IN ('answer', 'cancel', 'retry', 'fork'));

-- A client writes which run replaces another with its request to cancel that one.
-- from schema.sql: flujo_keep_end
