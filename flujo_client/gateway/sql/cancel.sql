-- The request to cancel, and the flag by which nothing is claimed or merged after this commit: FOR UPDATE waits for merges. A worker ends the run.
WITH held AS (SELECT id FROM flujo_runs WHERE id = %(run)s::text AND status IN ('queued', 'running', 'parked') FOR UPDATE),
flagged AS (
    UPDATE flujo_runs r SET cancel_requested_at = coalesce(r.cancel_requested_at, now()), reason = coalesce(%(reason)s::text, r.reason)
    FROM held WHERE r.id = held.id RETURNING r.id
),
asked AS (INSERT INTO flujo_inputs (run_id, kind, actor, note) SELECT id, 'cancel', %(actor)s::text, %(reason)s::text FROM flagged),
story AS (
    INSERT INTO flujo_events (run_id, name, level, data)
    SELECT id, 'run.cancel_requested', 'warning', jsonb_build_object('actor', %(actor)s::text, 'reason', %(reason)s::text) FROM flagged
)
SELECT id FROM flagged;
