-- The acknowledgement. It waits until no live attempt is left (law: cancel wins).
WITH ended AS (
    UPDATE flujo_runs r SET status = %(status)s, reason = coalesce(r.reason, %(reason)s), ended_at = now()
    WHERE r.id = %(run)s AND r.status IN ('queued', 'running', 'parked')
      AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.run_id = r.id AND a.status IN ('ready', 'queued', 'running'))
    RETURNING r.id
),
acted AS (
    UPDATE flujo_inputs SET acted_at = now() WHERE run_id = %(run)s AND kind = 'cancel' AND acted_at IS NULL
      AND EXISTS (SELECT 1 FROM ended)
)
INSERT INTO flujo_events (run_id, name, level, data)
SELECT id, 'run.' || %(status)s, 'warning', jsonb_build_object('reason', %(reason)s::text) FROM ended
RETURNING 1;
