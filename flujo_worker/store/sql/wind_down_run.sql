-- The acknowledgement. It waits until no live attempt is left (law: cancel wins). The reason is the one that was given with the request, if any.
WITH ended AS (
    UPDATE flujo_runs r
    SET status = %(status)s, ended_at = now(), reason = coalesce(
        (SELECT i.note FROM flujo_inputs i WHERE i.run_id = r.id AND i.kind = 'cancel' AND i.note IS NOT NULL ORDER BY i.id LIMIT 1), %(reason)s
    )
    WHERE r.id = %(run)s AND r.ended_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.run_id = r.id AND a.ended_at IS NULL)
    RETURNING r.id, r.reason, pg_notify('flujo_runs', r.id)
),
acted AS (UPDATE flujo_inputs SET acted_at = now() WHERE run_id = %(run)s AND kind = 'cancel' AND acted_at IS NULL AND EXISTS (SELECT 1 FROM ended))
INSERT INTO flujo_events (run_id, name, level, data)
SELECT id, 'run.' || %(status)s, 'warning', jsonb_build_object('reason', reason) FROM ended
RETURNING 1;
