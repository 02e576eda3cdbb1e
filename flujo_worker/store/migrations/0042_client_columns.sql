-- Who may not delete runs, such as `flujo_client`, may only ask to end a live run: once, with a reason, and as failed only a background run
-- without activity. Which run an ended one was retried as is all that it may write later.
CREATE OR REPLACE FUNCTION flujo_keep_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT has_table_privilege(TG_RELID, 'DELETE') THEN
        RAISE EXCEPTION 'permission denied: run % has ended, or this is more than a request to cancel it', OLD.id USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER flujo_keep_end BEFORE UPDATE OF cancel_requested_at, reason, error, retried_as ON flujo_runs FOR EACH ROW
    WHEN (((OLD.cancel_requested_at, OLD.reason, OLD.error) IS DISTINCT FROM (NEW.cancel_requested_at, NEW.reason, NEW.error) AND (
               OLD.ended_at IS NOT NULL OR NEW.cancel_requested_at IS NULL OR OLD.cancel_requested_at <> NEW.cancel_requested_at
               OR (OLD.error IS DISTINCT FROM NEW.error AND (
                       OLD.cancel_requested_at IS NOT NULL OR OLD.parent_run IS NULL OR OLD.parent_address IS NOT NULL
                       OR NEW.error ->> 'code' IS DISTINCT FROM 'BACKGROUND_STALE'))))
          OR (OLD.ended_at IS NULL AND OLD.retried_as IS DISTINCT FROM NEW.retried_as))
    EXECUTE FUNCTION flujo_keep_end();
