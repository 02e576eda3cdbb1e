-- A failover may lose the effect of a merge that follows it. Only attempts at steps that act spend something.
SELECT r.id, r.metadata ->> 'shape' AS shape, array_agg(a.key ORDER BY a.ended_at) AS merged
FROM flujo_runs r JOIN flujo_attempts a ON a.run_id = r.id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND r.status = 'succeeded' AND a.status = 'succeeded'
  AND EXISTS (SELECT FROM flujo_spends s WHERE s.key = a.key)
GROUP BY r.id;
