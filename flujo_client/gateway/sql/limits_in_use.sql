SELECT l.name, l.at_once, count(*) FILTER (WHERE p.fence IS NOT NULL)::int AS in_use, count(*) FILTER (WHERE p.fence IS NULL)::int AS waiting
FROM flujo_limits l JOIN flujo_permits p ON p.name = l.name JOIN flujo_attempts a ON a.key = p.key
LEFT JOIN flujo_workers w ON w.id = a.worker AND w.lease_until > now()
WHERE (p.fence IS NULL AND a.status IN ('ready', 'queued')) OR (p.fence = a.fence AND a.status = 'running' AND w.id IS NOT NULL)
GROUP BY l.name, l.at_once ORDER BY waiting DESC, l.name LIMIT %(limit)s::int;
