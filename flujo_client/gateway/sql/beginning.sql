-- The input and context of a top-level step. The context is the last that was stored up to its place; no row is returned if a row before it
-- is missing, because then it may have been another one. The input is the output of the last step before it that had one.
WITH last AS (
    SELECT max(place) AS place FROM flujo_contexts
    WHERE run_id = %(run)s::text AND place <= %(place)s::int AND (context IS NOT NULL OR place = 0)
),
given AS (
    SELECT a.output, array_position(%(before)s::text[], a.step) AS place, a.kind = 'step' AS is_step FROM flujo_attempts a
    WHERE a.run_id = %(run)s::text AND a.address = '' AND a.status = 'succeeded' AND a.step = ANY(%(before)s::text[])
    UNION ALL SELECT s.output, array_position(%(before)s::text[], s.step), false FROM flujo_scopes s
    WHERE s.run_id = %(run)s::text AND s.parent = '' AND s.status = 'succeeded' AND s.step = ANY(%(before)s::text[])
)
SELECT c.context, coalesce((SELECT g.output FROM given g WHERE g.output IS NOT NULL ORDER BY g.place DESC, g.is_step LIMIT 1), r.input) AS input
FROM flujo_runs r JOIN last ON true JOIN flujo_contexts c ON c.run_id = r.id AND c.place = last.place
WHERE r.id = %(run)s::text
  AND (SELECT count(*) FROM flujo_contexts b WHERE b.run_id = r.id AND b.place BETWEEN c.place AND %(place)s::int) = %(place)s::int - c.place + 1;
