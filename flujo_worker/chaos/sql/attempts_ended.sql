SELECT 'attempt ' || a.key || ' is ' || a.status AS what FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND (a.ended_at IS NULL OR a.status IN ('ready', 'queued', 'running', 'paused'));
