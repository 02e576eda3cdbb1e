-- Of each run the outermost open container with branches or items, and how many of them are in which state; a held one waits for a lane.
SELECT r.id AS run_id, f.step, c.*
FROM unnest(%(runs)s::text[]) r (id)
CROSS JOIN LATERAL (
    SELECT x.address, x.step FROM flujo_scopes x WHERE x.run_id = r.id AND x.status = 'open' AND x.parent IS NOT NULL AND x.kind IN ('parallel', 'map', 'router')
    ORDER BY length(x.address) LIMIT 1
) f
CROSS JOIN LATERAL (
    SELECT count(*)::int AS total, count(*) FILTER (WHERE s.status = 'succeeded')::int AS done, count(*) FILTER (WHERE s.status = 'failed')::int AS failed,
           count(*) FILTER (WHERE s.status = 'open' AND NOT s.held)::int AS under_way
    FROM flujo_scopes s WHERE s.run_id = r.id AND s.parent = f.address
) c;
