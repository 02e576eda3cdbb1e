SELECT 'attempt ' || a.key || ' was merged under claim ' || a.fence || ' and has spent '
       || coalesce(s.cost_usd || ' USD and ' || (s.input_tokens + s.output_tokens) || ' tokens', 'nothing') AS what
FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id LEFT JOIN flujo_spends s ON s.key = a.key AND s.claim_id = a.claim_id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND a.status = 'succeeded' AND EXISTS (SELECT FROM flujo_chaos_effects e WHERE e.key = a.key)
  AND (s.cost_usd, s.input_tokens + s.output_tokens) IS DISTINCT FROM (%(cost_usd)s::float8, %(tokens)s::bigint)
UNION ALL SELECT 'claim ' || s.fence || ' of attempt ' || s.key || ' has spent something, and has no effect'
FROM flujo_spends s JOIN flujo_runs r ON r.id = s.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND s.at > to_timestamp(%(lost_before)s::float8) + interval '30 s'
  AND NOT EXISTS (SELECT FROM flujo_chaos_effects e WHERE (e.key, e.claim_id) = (s.key, s.claim_id));
