-- Add a schedule, or replace the one of its name: it stays paused, and keeps its next slot if its timing is the same. Its plan is stored too.
WITH
-- include definition
added AS (
    INSERT INTO flujo_schedules AS s (name, reference, fingerprint, body, timing, tenant, overlap, catch_up, slot_at, due_at)
    VALUES (%(schedule)s::text, %(reference)s::text, %(fingerprint)s::text, %(order)s::bytea, %(timing)s::jsonb, %(tenant)s::text, %(overlap)s::text,
            %(catch_up)s::text, %(slot_at)s::timestamptz, %(due_at)s::timestamptz)
    ON CONFLICT (name) DO UPDATE
    SET reference = excluded.reference, fingerprint = excluded.fingerprint, body = excluded.body, timing = excluded.timing, tenant = excluded.tenant,
        overlap = excluded.overlap, catch_up = excluded.catch_up, changed_at = now(), last_error = NULL, failing_since = NULL,
        slot_at = CASE WHEN s.timing = excluded.timing THEN s.slot_at ELSE excluded.slot_at END,
        due_at = CASE WHEN s.timing = excluded.timing THEN s.due_at ELSE excluded.due_at END
    RETURNING s.*
)
SELECT %(name)s::text AS pipeline,
-- include schedule
FROM added s;
