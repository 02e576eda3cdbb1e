SELECT a.run_id, r.name AS pipeline, a.address, a.step, a.key, a.question, a.status, a.created_at AS asked_at,
       CASE WHEN a.status = 'paused' THEN nullif(a.available_at, 'infinity') END AS expires_at,
       a.status = 'paused' AND a.available_at <= now() AS is_over,
       CASE WHEN r.cancel_requested_at IS NOT NULL AND r.ended_at IS NULL THEN 'cancelled'
            WHEN r.deadline_at <= now() AND r.ended_at IS NULL THEN 'expired' ELSE r.status END AS run_status,
       i.id IS NOT NULL AS is_answered, i.actor AS answered_by, i.note, i.at AS answered_at
FROM flujo_kin(%(run)s::text) k JOIN flujo_attempts a ON a.run_id = k JOIN flujo_runs r ON r.id = a.run_id
LEFT JOIN flujo_inputs i ON i.attempt = a.key AND i.kind = 'answer'
WHERE a.question IS NOT NULL AND a.question ->> 'event' IS NULL ORDER BY a.created_at, a.number, a.address;
