SELECT a.key, a.address, a.step, a.number, a.kind, a.status, a.reason, a.worker, a.fence, a.sends, a.output, a.error, a.metadata,
       coalesce(a.latency_s, 0)::float8 AS latency_s, a.created_at, a.started_at, a.ended_at,
       coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd
FROM flujo_attempts a
LEFT JOIN LATERAL (
    SELECT sum(input_tokens + output_tokens) AS tokens, sum(cost_usd) AS cost_usd FROM flujo_spends WHERE key = a.key
) t ON true
WHERE a.run_id = %(run)s
ORDER BY a.created_at, a.number;
