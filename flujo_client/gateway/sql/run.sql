-- One run. Totals are summed here, never kept per step; what its child runs have spent is in them, however deep they are (U-14).
SELECT r.id, r.reference, r.fingerprint, r.name, p.version, v.status, r.reason, r.error, r.input, r.output, r.tenant, r.metadata,
       r.created_at, r.started_at, r.ended_at, r.deadline_at, r.cancel_requested_at, r.parent_run, r.forked_from, r.from_step, s.context,
       coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd
FROM flujo_runs r
JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.status IN ('queued', 'running')
              AND EXISTS (SELECT 1 FROM flujo_attempts q WHERE q.run_id = r.id AND q.status = 'paused')
              AND NOT EXISTS (SELECT 1 FROM flujo_attempts q WHERE q.run_id = r.id AND q.status IN ('ready', 'queued', 'running'))
            THEN 'paused' ELSE r.status END AS status
) v  -- `paused` is a view: a question is open and nothing can run
LEFT JOIN flujo_scopes s ON s.run_id = r.id AND s.address = r.root
LEFT JOIN LATERAL (
    WITH RECURSIVE kin (id) AS (SELECT r.id UNION ALL SELECT c.id FROM kin JOIN flujo_runs c ON c.parent_run = kin.id)
    SELECT sum(x.input_tokens + x.output_tokens) AS tokens, sum(x.cost_usd) AS cost_usd
    FROM kin JOIN flujo_spends x ON x.run_id = kin.id
) t ON true
WHERE r.id = %(run)s;
