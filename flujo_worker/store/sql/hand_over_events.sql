-- Give events to the steps that wait for them, in the run that they were sent to or in a child run that it waits for. Nothing else does: an event
-- that is sent and a step that begins need not see each other, and neither waits for the other's transaction (ADR 58). Of each name the n-th event
-- goes to the n-th step that waits. Two sweeps at once make the same pairs, and the row of each pair is changed once. A step whose time is over
-- still gets an event that is on record, until it has expired. What was sent to a run that ended meanwhile is looked at no more.
WITH due AS (
    SELECT i.id, i.run_id, i.name, row_number() OVER (PARTITION BY i.run_id, i.name ORDER BY i.id) AS nth
    FROM flujo_inputs i JOIN flujo_runs r ON r.id = i.run_id
    WHERE i.kind = 'event' AND i.acted_at IS NULL AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
),
waiting AS (
    SELECT t.run_id, t.name, a.key, row_number() OVER (PARTITION BY t.run_id, t.name ORDER BY a.created_at, a.key) AS nth
    FROM (SELECT DISTINCT run_id, name FROM due) t CROSS JOIN LATERAL flujo_kin(t.run_id) k
    JOIN flujo_attempts a ON a.run_id = k AND a.kind = 'resume' AND a.ended_at IS NULL AND a.status = 'paused' AND a.question ->> 'event' = t.name
),
pair AS (
    SELECT DISTINCT ON (w.key) w.key, d.id FROM due d JOIN waiting w ON w.run_id = d.run_id AND w.name = d.name AND w.nth = d.nth
    ORDER BY w.key, d.id
),
held AS (
    SELECT a.key, a.address, a.step, p.id FROM (SELECT * FROM pair LIMIT %(limit)s) p JOIN flujo_attempts a ON a.key = p.key
    WHERE a.status = 'paused' ORDER BY a.key FOR UPDATE OF a SKIP LOCKED
),
given AS (
    UPDATE flujo_inputs i SET kind = 'answer', attempt = h.key, address = h.address, step = h.step, acted_at = now()
    FROM held h WHERE i.id = h.id AND i.kind = 'event' AND i.acted_at IS NULL
    RETURNING i.attempt AS key, i.name, i.note
),
turned AS (
    UPDATE flujo_attempts a SET status = 'ready', available_at = now() FROM given g WHERE a.key = g.key RETURNING a.run_id, a.key, a.step, g.name, g.note
),
late AS (
    UPDATE flujo_inputs i SET acted_at = now()
    WHERE i.kind = 'event' AND i.acted_at IS NULL AND (SELECT r.ended_at IS NULL FROM flujo_runs r WHERE r.id = i.run_id) IS NOT TRUE
)
INSERT INTO flujo_events (run_id, attempt, name, data)
SELECT run_id, key, 'run.event_received', jsonb_build_object('step', step, 'event', name, 'id', note) FROM turned
RETURNING 1;
