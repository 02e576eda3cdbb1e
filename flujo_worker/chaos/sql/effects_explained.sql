-- A claim that is not the last one of its attempt was lost or handed back. An effect makes its claim durable: both are in one log.
SELECT 'claim ' || e.fence || ' of attempt ' || e.key || ' has ' || count(*) || ' effects' AS what
FROM flujo_chaos_effects e JOIN flujo_runs r ON r.id = e.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s GROUP BY e.key, e.fence HAVING count(*) > 1
UNION ALL
SELECT 'an effect of claim ' || e.fence || ' of attempt ' || e.key || ', which '
       || coalesce('is ' || a.status || ' under claim ' || a.fence, 'is not recorded')
FROM flujo_chaos_effects e JOIN flujo_runs r ON r.id = e.run_id LEFT JOIN flujo_attempts a ON a.key = e.key
WHERE r.metadata ->> 'chaos' = %(monkey)s
  AND (a.key IS NULL OR e.fence > a.fence OR (e.fence = a.fence AND a.status NOT IN ('succeeded', 'failed', 'cancelled')));
