-- Cancel other runs, as cancel.sql does, so that an attempt that waits at a limit gets a place: the runs whose attempts asked first, as many as
-- exceed the limit. Later requests are ignored, so of two attempts that do this at once the later one stays.
WITH asked AS (
    SELECT p.turn, r.id FROM flujo_permits p
    JOIN flujo_attempts a ON a.key = p.key AND a.ended_at IS NULL
    JOIN flujo_runs r ON r.id = a.run_id AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
    WHERE p.name = %(name)s::text AND p.turn <= (SELECT m.turn FROM flujo_permits m WHERE m.key = %(key)s::text)
),
oldest AS (SELECT id FROM asked WHERE id <> %(run)s::text ORDER BY turn LIMIT greatest((SELECT count(*) FROM asked) - %(at_once)s::int, 0)),
held AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.id = ANY(ARRAY(SELECT id FROM oldest)) AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL ORDER BY r.id FOR UPDATE
),
flagged AS (
    UPDATE flujo_runs r SET cancel_requested_at = now(), reason = %(reason)s::text, replaced_by = %(run)s::text FROM held WHERE r.id = held.id RETURNING r.id
),
requested AS (INSERT INTO flujo_inputs (run_id, kind, note) SELECT id, 'cancel', %(reason)s::text FROM flagged)
INSERT INTO flujo_events (run_id, name, level, data)
SELECT id, 'run.cancel_requested', 'warning', jsonb_build_object('reason', %(reason)s::text) FROM flagged;
