-- A claim that is not the last of its attempt was lost or handed back, and its effect needs no merge. After a failover a lost attempt may still act.
SELECT 'claim ' || e.claim_id || ' of attempt ' || e.key || ' has ' || count(*) || ' effects' AS what
FROM flujo_chaos_effects e JOIN flujo_runs r ON r.id = e.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s GROUP BY e.key, e.claim_id HAVING count(*) > 1
UNION ALL SELECT 'an effect of claim ' || e.claim_id || ' of attempt ' || e.key || ', which '
       || CASE WHEN a.key IS NULL THEN 'is not recorded' ELSE 'is ' || a.status || ' under this claim' END
FROM flujo_chaos_effects e JOIN flujo_runs r ON r.id = e.run_id LEFT JOIN flujo_attempts a ON a.key = e.key
WHERE r.metadata ->> 'chaos' = %(monkey)s
  AND ((a.key IS NULL AND e.at > to_timestamp(%(lost_before)s::float8) + interval '30 s')
       OR (e.claim_id = a.claim_id AND a.status NOT IN ('succeeded', 'failed', 'cancelled')));
