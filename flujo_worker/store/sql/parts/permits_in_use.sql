SELECT count(*) FROM flujo_permits p
    JOIN flujo_attempts a ON a.key = p.key AND a.fence = p.fence AND a.status = 'running'
    JOIN flujo_workers w ON w.id = a.worker AND w.lease_until > now()
    WHERE p.fence IS NOT NULL AND p.key IS DISTINCT FROM %(key)s::text
