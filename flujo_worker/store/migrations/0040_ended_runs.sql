-- Who may not delete runs, such as `flujo_client`, may change the error and the reason of live runs only, and what a run was enqueued with
-- never: that an ended run was retried is all that is written later.
CREATE FUNCTION flujo_keep_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_table_privilege(TG_RELID, 'DELETE') THEN
        RAISE EXCEPTION 'permission denied: run % has ended, or this is its digest', OLD.id USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER flujo_keep_end BEFORE UPDATE OF cancel_requested_at, reason, error, digest ON flujo_runs FOR EACH ROW
    WHEN (OLD.digest <> NEW.digest OR (OLD.ended_at IS NOT NULL AND (OLD.cancel_requested_at, OLD.reason, OLD.error)
          IS DISTINCT FROM (NEW.cancel_requested_at, NEW.reason, NEW.error)))
    EXECUTE FUNCTION flujo_keep_end();
