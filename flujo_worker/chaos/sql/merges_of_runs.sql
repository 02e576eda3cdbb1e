SELECT r.id, r.metadata ->> 'shape' AS shape, array_agg(a.key ORDER BY a.ended_at) AS merged
FROM flujo_runs r JOIN flujo_attempts a ON a.run_id = r.id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND r.status = 'succeeded' AND a.status = 'succeeded'
  AND EXISTS (SELECT FROM flujo_chaos_effects e WHERE e.key = a.key)
GROUP BY r.id;
