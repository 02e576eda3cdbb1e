SELECT 'attempt ' || a.key || ' was merged under claim ' || a.fence || ', which has no effect' AS what
FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND a.status = 'succeeded' AND EXISTS (SELECT FROM flujo_spends s WHERE s.key = a.key)
  AND NOT EXISTS (SELECT FROM flujo_chaos_effects e WHERE e.key = a.key AND e.claim_id = a.claim_id);
