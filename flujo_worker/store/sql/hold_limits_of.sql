-- Hold the limits that attempts have permits of, so that no permit is granted while it is decided which attempts keep theirs.
SELECT FROM flujo_limits l
WHERE EXISTS (SELECT 1 FROM flujo_permits p WHERE p.name = l.name AND p.key = ANY(%(keys)s::text[]) AND p.fence IS NOT NULL)
ORDER BY l.name FOR UPDATE;
