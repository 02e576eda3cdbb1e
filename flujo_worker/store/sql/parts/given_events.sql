waiting AS (
    SELECT t.run_id, t.name, a.key, row_number() OVER (PARTITION BY t.run_id, t.name ORDER BY a.created_at, a.key) AS nth
    FROM (SELECT DISTINCT run_id, name FROM due) t CROSS JOIN LATERAL flujo_kin(t.run_id) k
    JOIN flujo_attempts a ON a.run_id = k AND a.kind = 'resume' AND a.ended_at IS NULL AND a.status = 'paused' AND a.question ->> 'event' = t.name
),
pair AS (
    SELECT DISTINCT ON (w.key) w.key, d.id FROM due d JOIN waiting w ON w.run_id = d.run_id AND w.name = d.name AND w.nth = d.nth
    ORDER BY w.key, d.id
),
held AS (
    SELECT a.key, a.address, a.step, i.id FROM (SELECT * FROM pair LIMIT %(limit)s::int) p
    JOIN flujo_attempts a ON a.key = p.key JOIN flujo_inputs i ON i.id = p.id
    WHERE a.status = 'paused' AND i.kind = 'event' AND i.acted_at IS NULL ORDER BY a.key FOR UPDATE OF a, i SKIP LOCKED
),
given AS (
    UPDATE flujo_inputs i SET kind = 'answer', attempt = h.key, address = h.address, step = h.step, acted_at = now()
    FROM held h WHERE i.id = h.id RETURNING i.attempt AS key, i.name, i.note
),
turned AS (
    UPDATE flujo_attempts a SET status = 'ready', available_at = now() + make_interval(secs => %(grace_s)s::float8)
    FROM given g WHERE a.key = g.key RETURNING a.run_id, a.key, a.step, g.name, g.note
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, name, data)
    SELECT run_id, key, 'run.event_received', jsonb_build_object('step', step, 'event', name, 'id', note) FROM turned
)
SELECT coalesce(array_agg(key), '{}') AS given FROM turned;
