-- Events by the day, and in an order that can be read on from.
--
-- Ids are drawn before their transactions commit, so of two branches the higher id may be seen first, and who reads on from it would miss
-- the lower one. A transaction's number is drawn at its first write: once all below one have ended, nothing comes before it any more.
ALTER TABLE flujo_events
    ADD COLUMN xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ADD COLUMN written_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX flujo_events_story ON flujo_events (run_id, xid, id);
DROP INDEX flujo_events_run;

-- Make partitions of days, and drop those that are over.
--   first, last   the days to have a partition for, counted from today. Under running workers never today, nor a day that might begin
--                 meanwhile: who has found the default partition for an event, and waits there for its lock, is refused afterwards
--   keep          days for which events are kept; null: for ever
-- A day whose events stand in the default partition already stays there. Who finds the tables locked leaves it to the next time.
CREATE FUNCTION flujo_keep_event_partitions(first integer, last integer, keep integer) RETURNS void
LANGUAGE plpgsql SET lock_timeout = '500ms' SET TimeZone = 'UTC' AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    day date;
    part text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('flujo_event_partitions')) THEN
        RETURN;
    END IF;
    FOR day IN SELECT today + n FROM generate_series(first, last) AS n LOOP
        part := 'flujo_events_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE %I (LIKE flujo_events INCLUDING DEFAULTS)', part);
            EXECUTE format('ALTER TABLE flujo_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, day::timestamptz, (day + 1)::timestamptz);
        EXCEPTION
            WHEN check_violation THEN NULL;
            WHEN lock_not_available THEN RETURN;
        END;
    END LOOP;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'flujo_events'::regclass AND c.relname ~ '^flujo_events_\d{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') < today - keep
        ORDER BY 1
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE %I', part);
        EXCEPTION
            WHEN lock_not_available THEN RETURN;
        END;
    END LOOP;
    DELETE FROM flujo_events_default WHERE at < (today - keep)::timestamptz;
END
$$;

-- Nobody writes an event now: this migration holds the table.
SELECT flujo_keep_event_partitions(0, 7, NULL);
