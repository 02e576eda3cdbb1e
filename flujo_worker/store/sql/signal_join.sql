-- Create the join's work row, if all branches are closed and the awaited child run, if any, has ended. It follows hold_fan_out.sql in one transaction, so
-- two signals create one row, and the second sees it. A signal after the last close sees all branches closed. An existing row is not inserted again: an
-- insert would wait for the join's own merge, which waits for the fan-out that is locked here. For the same reason a signal must lock the fan-out before it
-- reads: another signal's join could be at its merge by the time of the insert. FOR KEY SHARE of the run, as in a merge: after a cancel no row is made.
WITH fit AS (
    SELECT s.run_id, s.address, s.step, s.run_id || ':' || s.address || ':' || s.step || ':join' AS key
    FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id
    WHERE s.run_id = %(run)s AND s.address = %(address)s AND s.waiting AND s.status = 'open'
      AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL AND
-- include joinable
    FOR KEY SHARE OF r
),
made AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at)
    SELECT key, run_id, address, step, 1, 'join', %(queue)s, now() + make_interval(secs => %(grace_s)s) FROM fit ON CONFLICT DO NOTHING
    RETURNING key, run_id
)
INSERT INTO flujo_events (run_id, attempt, name, data) SELECT run_id, key, 'join.rung', jsonb_build_object('by', %(by)s::text) FROM made
RETURNING 1;
