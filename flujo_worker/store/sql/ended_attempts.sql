-- The commit that ends an attempt inserts the next one at its step: without one the step has ended too.
SELECT a.ended_at AS ended, a.key, r.id AS run, r.trace_parent, r.name AS pipeline, r.tenant,
       CASE WHEN a.kind = 'resume' THEN a.created_at ELSE coalesce(a.started_at, a.created_at) END AS began, a.status, a.reason,
       a.error ->> 'feedback' AS feedback, a.error ->> 'type_name' AS error, a.address, a.step, a.number, a.kind, r.root, a.worker, a.fence, a.losses,
       x.input_tokens, x.output_tokens, x.requests, x.cost_usd, x.model, a.metadata ->> 'aros.agent_id' AS agent,
       NOT EXISTS (SELECT 1 FROM flujo_attempts n WHERE n.key IN (p.of_step || (a.number + 1), p.of_step || 'resume' || (a.number + 1))) AS is_last,
       (SELECT min(f.created_at) FROM flujo_attempts f WHERE f.key IN (p.of_step || '1', p.of_step || 'resume')) AS step_began,
       (SELECT s.address FROM flujo_scopes s WHERE s.run_id = a.run_id AND s.kind <> 'sequence' AND s.address IN (a.address, flujo_node(a.address, a.step))
        ORDER BY length(s.address) DESC LIMIT 1) AS container,
       u.has_units, u.replayed, u.unknown
FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
CROSS JOIN LATERAL (SELECT a.run_id || ':' || a.address || ':' || a.step || ':' AS of_step, a.address || ':' || a.step AS place) p
CROSS JOIN LATERAL (
    SELECT coalesce(sum(s.input_tokens), 0)::bigint AS input_tokens, coalesce(sum(s.output_tokens), 0)::bigint AS output_tokens,
           coalesce(sum(s.requests), 0)::bigint AS requests, coalesce(sum(s.cost_usd), 0)::float8 AS cost_usd, max(s.model) AS model
    FROM flujo_spends s WHERE s.key = a.key
) x
CROSS JOIN LATERAL (
    SELECT count(*) > 0 AS has_units, count(*) FILTER (WHERE u.settled_at IS NOT NULL AND u.claim_id IS DISTINCT FROM a.claim_id) AS replayed,
           coalesce(array_agg(u.operation) FILTER (WHERE u.settled_at IS NULL AND u.key = a.key), '{}') AS unknown
    FROM flujo_units u WHERE u.run_id = a.run_id AND u.place IN (p.place, p.place || ':' || coalesce(a.units_from, a.number))
) u
WHERE a.ended_at >= %(since)s::timestamptz AND a.ended_at < %(until)s::timestamptz AND (a.ended_at, a.key) > (%(since)s::timestamptz, %(after)s::text)
ORDER BY a.ended_at, a.key LIMIT %(limit)s::int;
