SELECT a.key, a.address, a.step, a.number, a.kind, a.status, a.reason, a.worker, a.fence, a.claim_id::text, a.sends, a.waits_for, a.waits_since, a.room, a.loss, a.output, a.error, a.metadata, a.code,
       coalesce(a.latency_s, 0)::float8 AS latency_s, a.created_at, a.started_at, a.ended_at,
       coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd,
       b.estimate_cost_usd, b.estimate_tokens, b.quota_before_usd, b.quota_before_tokens
FROM flujo_attempts a
LEFT JOIN LATERAL (SELECT sum(input_tokens + output_tokens) AS tokens, sum(cost_usd) AS cost_usd FROM flujo_spends WHERE key = a.key) t ON true
LEFT JOIN LATERAL (
    SELECT max(usd)::float8 AS estimate_cost_usd, max(tokens) AS estimate_tokens,
           min(before_usd)::float8 AS quota_before_usd, min(before_tokens) AS quota_before_tokens
    FROM flujo_reservations WHERE key = a.key
) b ON true
WHERE a.run_id = %(run)s
ORDER BY a.created_at, a.number, a.key COLLATE "C";  -- those of one merge have one time
