SELECT 'run ' || c.run_id || ' had ' || c.merges || ' merges when its cancel was acknowledged, and has ' || count(a.key) AS what
FROM flujo_chaos_cancels c JOIN flujo_runs r ON r.id = c.run_id LEFT JOIN flujo_attempts a ON a.run_id = c.run_id AND a.status = 'succeeded'
WHERE r.metadata ->> 'chaos' = %(monkey)s GROUP BY c.run_id, c.merges, r.status HAVING count(a.key) <> c.merges OR r.status <> 'cancelled';
