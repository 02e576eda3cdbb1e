-- A limit was passed, so the tree's first run fails. A live run is marked, and wound down as for a cancel; one that this merge has ended fails
-- instead of succeeding, before anyone can see its end.
WITH broken AS (
    UPDATE flujo_runs r
    SET cancel_requested_at = coalesce(r.cancel_requested_at, now()), error = %(error)s::jsonb, failed_key = %(key)s::text,
        status = CASE WHEN r.id = %(ended)s::text THEN 'failed' ELSE r.status END,
        reason = %(reason)s::text, output = CASE WHEN r.id = %(ended)s::text THEN NULL ELSE r.output END
    WHERE r.id = %(root)s::text AND (r.id = %(ended)s::text OR (r.status IN ('queued', 'running', 'parked') AND r.error IS NULL))
    RETURNING r.id, r.status
),
untold AS (
    DELETE FROM flujo_events e
    WHERE e.run_id = %(ended)s::text AND e.attempt = %(key)s::text AND e.fence = %(fence)s::int AND e.name IN ('run.succeeded', 'run.failed')
      AND EXISTS (SELECT 1 FROM broken WHERE id = %(ended)s::text)
),
told AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT id, %(key)s::text, %(fence)s::int, 'flujo.budget.violation', 'error', %(violation)s::jsonb FROM broken
)
INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
SELECT id, %(key)s::text, %(fence)s::int, 'run.failed', 'error', jsonb_build_object('reason', %(reason)s::text) FROM broken
WHERE id = %(ended)s::text;
