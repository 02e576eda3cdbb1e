-- A person's answer, and the question's row that continues with it: both or neither. A second answer finds the row no longer paused. Locks
-- are taken in the usual order, attempt → run; FOR KEY SHARE as in a merge: after a cancel nothing is answered.
WITH held AS (
    SELECT key, run_id, address, step FROM flujo_attempts
    WHERE key = %(key)s::text AND status = 'paused' AND available_at > now() FOR UPDATE
),
live AS (
    SELECT r.id FROM held JOIN flujo_runs r ON r.id = held.run_id
    WHERE r.status IN ('queued', 'running', 'parked') AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now())
    FOR KEY SHARE OF r
),
turned AS (
    UPDATE flujo_attempts a SET status = 'ready', available_at = now() FROM held
    WHERE a.key = held.key AND EXISTS (SELECT 1 FROM live) RETURNING a.key, a.run_id, a.address, a.step
),
given AS (
    INSERT INTO flujo_inputs (run_id, attempt, kind, address, step, actor, note, answer)
    SELECT run_id, key, 'answer', address, step, %(actor)s::text, %(note)s::text, %(answer)s::bytea FROM turned
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, name, data)
    SELECT run_id, key, 'run.answered', jsonb_build_object('step', step, 'actor', %(actor)s::text, 'note', %(note)s::text) FROM turned
)
SELECT key FROM turned;
