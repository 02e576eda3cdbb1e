SELECT 'run ' || id || ' was acknowledged, and is not recorded' AS what
FROM unnest(%(acknowledged)s::text[]) AS id WHERE NOT EXISTS (SELECT FROM flujo_runs r WHERE r.id = id.id)
UNION ALL SELECT 'run ' || id || ' (' || (metadata ->> 'shape') || ') is ' || status FROM flujo_runs
WHERE metadata ->> 'chaos' = %(monkey)s AND ended_at IS NULL;
