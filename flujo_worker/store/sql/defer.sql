-- The attempt waits in its row, without a message or a worker, and retains its number. It has made no call, so its reservation is released,
-- unless a worker was lost with it before, whose spend is unknown. Its wait is logged once, if at all.
WITH freed AS (
    UPDATE flujo_attempts SET status = 'ready', worker = NULL, started_at = NULL, available_at = now() + make_interval(secs => %(delay_s)s::float8),
        waits_for = %(waits_for)s::text,
        waits_since = CASE WHEN waits_for = %(waits_for)s::text THEN waits_since WHEN %(waits_for)s::text IS NOT NULL THEN now() END
    WHERE key = %(key)s::text AND status = 'running' AND fence = %(fence)s::int AND (%(claim_id)s::uuid IS NULL OR claim_id = %(claim_id)s::uuid)
    RETURNING run_id, losses
),
releasing AS (SELECT %(key)s::text AS key FROM freed WHERE losses = 0),
-- include release_held
,
story AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT freed.run_id, %(key)s::text, %(fence)s::int, %(name)s::text, %(level)s::text, %(data)s::text::jsonb FROM freed
    WHERE %(name)s::text IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM flujo_events e WHERE e.run_id = freed.run_id AND e.attempt = %(key)s::text AND e.name = %(name)s::text
    )
)
SELECT 1 AS moved FROM freed;
