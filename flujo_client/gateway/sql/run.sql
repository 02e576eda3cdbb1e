-- One run. Totals are summed here, never kept per step.
SELECT r.id, r.reference, r.fingerprint, r.name, p.version, r.status, r.reason, r.error, r.input, r.output, r.tenant, r.metadata,
       r.created_at, r.started_at, r.ended_at, r.deadline_at, r.cancel_requested_at, s.context,
       coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd
FROM flujo_runs r
JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
LEFT JOIN flujo_scopes s ON s.run_id = r.id AND s.address = ''
LEFT JOIN LATERAL (
    SELECT sum(input_tokens + output_tokens) AS tokens, sum(cost_usd) AS cost_usd FROM flujo_spends WHERE run_id = r.id
) t ON true
WHERE r.id = %(run)s;
