-- Record an event for a run that takes some; a sweep gives it to the step that waits for it. Nothing of the run is locked: the caller's transaction
-- may stay open for as long as it likes. No row: the run has ended, or the id is in use.
WITH sent AS (
    INSERT INTO flujo_inputs (run_id, kind, name, note, digest, actor, answer)
    SELECT r.id, 'event', %(name)s::text, %(id)s::text, %(digest)s::text, %(actor)s::text, %(value)s::bytea FROM flujo_runs r
    WHERE r.id = %(run)s::text AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now())
    ON CONFLICT DO NOTHING RETURNING run_id, name, note, actor
)
INSERT INTO flujo_events (run_id, name, data)
SELECT run_id, 'run.event_sent', jsonb_build_object('event', name, 'id', note, 'actor', actor) FROM sent
RETURNING run_id;
