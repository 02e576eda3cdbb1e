-- A failover may lose the effect of a claim that it keeps: both are in the same database.
SELECT 'attempt ' || a.key || ' was merged under claim ' || a.fence || ', which has no effect' AS what
FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND a.status = 'succeeded' AND EXISTS (SELECT FROM flujo_spends s WHERE s.key = a.key)
  AND a.started_at > to_timestamp(%(lost_before)s::float8)
  AND NOT EXISTS (SELECT FROM flujo_chaos_effects e WHERE e.key = a.key AND e.claim_id = a.claim_id);
