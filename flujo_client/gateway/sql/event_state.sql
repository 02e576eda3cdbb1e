-- What a run knows about an event: whether it takes any, the names that its plan waits for, the questions of the steps that wait for this one, how
-- many events no step has taken, and what was sent under this id before.
SELECT CASE WHEN r.cancel_requested_at IS NOT NULL AND r.ended_at IS NULL THEN 'cancelled'
            WHEN r.deadline_at <= now() AND r.ended_at IS NULL THEN 'expired' ELSE r.status END AS status,
       r.ended_at IS NULL AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now()) AS is_live,
       (SELECT coalesce(jsonb_agg(DISTINCT e), '[]') FROM flujo_pipelines p CROSS JOIN LATERAL jsonb_path_query(p.plan, '$.**.rules.event') AS e
        WHERE p.fingerprint = r.fingerprint) AS names,
       (SELECT coalesce(jsonb_agg(a.question), '[]') FROM flujo_kin(r.id) k JOIN flujo_attempts a ON a.run_id = k
        WHERE a.kind = 'resume' AND a.ended_at IS NULL AND a.status = 'paused' AND a.question ->> 'event' = %(name)s::text) AS questions,
       (SELECT count(*) FROM (SELECT FROM flujo_inputs i WHERE i.run_id = r.id AND i.kind = 'event' AND i.acted_at IS NULL LIMIT %(most)s::int) b) AS buffered,
       (SELECT i.digest FROM flujo_inputs i WHERE i.run_id = r.id AND i.name = %(name)s::text AND i.note = %(id)s::text) AS digest
FROM flujo_runs r WHERE r.id = %(run)s::text;
