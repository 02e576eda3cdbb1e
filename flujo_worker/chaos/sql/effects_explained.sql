-- A crash of Postgres may lose a claim, whose fence is used again: so a claim is identified by its time as well. One that is not the last
-- of its attempt was lost or handed back, and its effect needs no merge.
SELECT 'claim ' || e.fence || ' of attempt ' || e.key || ' has ' || count(*) || ' effects' AS what
FROM flujo_chaos_effects e JOIN flujo_runs r ON r.id = e.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s GROUP BY e.key, e.fence, e.claimed_at HAVING count(*) > 1
UNION ALL
SELECT 'an effect of claim ' || e.fence || ' of attempt ' || e.key || ', which '
       || CASE WHEN a.key IS NULL THEN 'is not recorded' ELSE 'is ' || a.status || ' under this claim' END
FROM flujo_chaos_effects e JOIN flujo_runs r ON r.id = e.run_id LEFT JOIN flujo_attempts a ON a.key = e.key
WHERE r.metadata ->> 'chaos' = %(monkey)s
  AND (a.key IS NULL OR ((e.fence, e.claimed_at) = (a.fence, (extract(epoch FROM a.started_at) * 1000000)::bigint)
                         AND a.status NOT IN ('succeeded', 'failed', 'cancelled')));
