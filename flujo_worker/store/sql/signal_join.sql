-- Create the join's work row, if all branches are closed and the awaited child run, if any, has ended. It follows hold_fan_out.sql in one
-- transaction, so two signals create one row, and the second sees it. A signal after the last close sees all branches closed. An existing
-- row is not inserted again: an insert would wait for the join's own merge, which waits for the fan-out that is locked here. For the same
-- reason a signal must lock the fan-out before it reads: another signal's join could be at its merge by the time of the insert. FOR KEY
-- SHARE of the run, as in a merge: after a cancel no row is made.
WITH fit AS (
    SELECT p.run_id, p.address, p.step, p.run_id || ':' || p.address || ':' || p.step || ':join' AS key
    FROM flujo_scopes p JOIN flujo_runs r ON r.id = p.run_id
    WHERE p.run_id = %(run)s AND p.address = %(address)s AND p.waiting AND p.status = 'open'
      AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM flujo_scopes c WHERE c.run_id = p.run_id AND c.parent = p.address AND c.status = 'open' OFFSET 0)
      AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.key = p.run_id || ':' || p.address || ':' || p.step || ':join' OFFSET 0)
      AND NOT EXISTS (
          SELECT 1 FROM flujo_runs k
          WHERE k.parent_run = p.run_id AND k.parent_address = p.address AND k.status IN ('queued', 'running', 'parked')
          OFFSET 0
      )
    FOR KEY SHARE OF r
),
made AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at)
    SELECT key, run_id, address, step, 1, 'join', %(queue)s, now() + make_interval(secs => %(grace_s)s) FROM fit
    ON CONFLICT DO NOTHING
    RETURNING key, run_id
)
INSERT INTO flujo_events (run_id, attempt, name, data) SELECT run_id, key, 'join.rung', jsonb_build_object('by', %(by)s::text) FROM made
RETURNING 1;
