WITH freed AS (
    UPDATE flujo_attempts SET status = 'ready', worker = NULL, started_at = NULL, waits_for = NULL, waits_since = NULL, available_at = now()
    WHERE key = %(key)s AND status = 'running' AND fence = %(fence)s AND (%(claim_id)s::uuid IS NULL OR claim_id = %(claim_id)s::uuid)
    RETURNING run_id
),
parked AS (
    UPDATE flujo_runs r SET status = 'parked', reason = %(reason)s, parked_for = %(parked_for)s::jsonb, unparked_by = NULL,
           parked = jsonb_build_object('kind', %(kind)s::text, 'what', %(what)s::text, 'at', now())
    FROM freed WHERE r.id = freed.run_id AND r.status IN ('queued', 'running') RETURNING r.id
)
INSERT INTO flujo_events (run_id, attempt, name, level, data)
SELECT id, %(key)s, 'run.parked', 'error', jsonb_build_object('reason', %(reason)s::text) FROM parked
RETURNING 1;
