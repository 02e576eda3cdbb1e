-- The spend of the attempts of a pipeline's latest runs, the latest first, over all fences of each. It is read off the hot path.
SELECT s.key, sum(s.input_tokens)::bigint AS input_tokens, sum(s.output_tokens)::bigint AS output_tokens,
       sum(s.requests)::int AS requests, sum(s.cost_usd)::float8 AS cost_usd
FROM (SELECT r.id FROM flujo_runs r WHERE r.reference = %(reference)s ORDER BY r.created_at DESC LIMIT %(runs)s::int) r
JOIN flujo_spends s ON s.run_id = r.id GROUP BY s.key ORDER BY max(s.at) DESC
LIMIT 5000;
