SELECT a.key, a.address, a.step, a.number, a.kind, a.status, a.reason, a.waits_for, a.queue, a.worker, a.losses, a.loss, a.room, a.code,
       a.input, a.output, a.answer, a.error,  a.latency_s, a.created_at, a.started_at, a.ended_at, s.*
FROM flujo_attempts a
CROSS JOIN LATERAL (
    SELECT coalesce(sum(input_tokens), 0)::bigint AS input_tokens, coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
           coalesce(sum(cost_usd), 0)::float8 AS cost_usd, max(model) AS model
    FROM flujo_spends WHERE key = a.key
) s
WHERE a.key = %(key)s AND a.run_id = %(run)s;
