-- Of each concurrency limit the runs that hold a place, and the attempts in its line, in their order.
SELECT l.name, l.at_once, p.key, a.run_id, p.fence IS NOT NULL AS holds
FROM flujo_limits l CROSS JOIN LATERAL (SELECT * FROM flujo_permits x WHERE x.name = l.name ORDER BY x.fence IS NULL, x.turn LIMIT %(most)s::int) p
JOIN flujo_attempts a ON a.key = p.key AND a.ended_at IS NULL LEFT JOIN flujo_workers w ON w.id = a.worker AND w.lease_until > now()
WHERE l.name = ANY(%(names)s::text[]) AND (p.fence IS NULL OR (p.fence = a.fence AND a.status = 'running' AND w.id IS NOT NULL))
ORDER BY l.name, p.turn;
