SELECT r.id, CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status
FROM flujo_runs r WHERE r.id = ANY(%(runs)s::text[]);
