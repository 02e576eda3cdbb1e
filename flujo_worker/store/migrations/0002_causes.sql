-- Why a run is where it is, as data. Nullable columns without a default are added without a look at the rows, and workers of schema 1 leave them
-- empty.
-- index: flujo_runs_forked ON flujo_runs (forked_from) WHERE forked_from IS NOT NULL

ALTER TABLE flujo_attempts
    ADD COLUMN waits_since timestamptz, ADD COLUMN room text, ADD COLUMN loss jsonb, ADD COLUMN input bytea, ADD COLUMN answer text,
    ALTER COLUMN input SET STORAGE EXTERNAL;
ALTER TABLE flujo_runs ADD COLUMN failed_key text, ADD COLUMN parked jsonb, ADD COLUMN replaced_by text;
ALTER TABLE flujo_spends ADD COLUMN model text;
ALTER TABLE flujo_inputs
    DROP CONSTRAINT flujo_inputs_kind_check, ADD CONSTRAINT flujo_inputs_kind_check CHECK (kind IN ('answer', 'cancel', 'retry', 'fork'));

-- A client writes which run replaces another with its request to cancel that one.
CREATE OR REPLACE TRIGGER flujo_keep_end BEFORE UPDATE OF cancel_requested_at, reason, error, retried_as, replaced_by ON flujo_runs FOR EACH ROW
    WHEN (((OLD.cancel_requested_at, OLD.reason, OLD.error, OLD.replaced_by) IS DISTINCT FROM
           (NEW.cancel_requested_at, NEW.reason, NEW.error, NEW.replaced_by) AND (
               OLD.ended_at IS NOT NULL OR NEW.cancel_requested_at IS NULL OR OLD.cancel_requested_at <> NEW.cancel_requested_at
               OR (OLD.error IS DISTINCT FROM NEW.error AND (
                       OLD.cancel_requested_at IS NOT NULL OR OLD.parent_run IS NULL OR OLD.parent_address IS NOT NULL
                       OR NEW.error ->> 'code' IS DISTINCT FROM 'BACKGROUND_STALE'))))
          OR (OLD.ended_at IS NULL AND OLD.retried_as IS DISTINCT FROM NEW.retried_as))
    EXECUTE FUNCTION flujo_keep_end();
