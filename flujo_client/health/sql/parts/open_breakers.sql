-- The models whose circuit breaker was last seen open or half open, within a day, and that no operator has closed since or turned off.
SELECT model, state, since_s FROM (
    SELECT DISTINCT ON (e.data ->> 'model') e.data ->> 'model' AS model, substr(e.name, length('flujo.breaker.') + 1) AS state,
           extract(epoch FROM now() - e.at)::float8 AS since_s, e.at
    FROM flujo_events e
    WHERE e.name IN ('flujo.breaker.opened', 'flujo.breaker.half_open', 'flujo.breaker.closed') AND e.at > now() - interval '1 day'
    ORDER BY e.data ->> 'model', e.at DESC, e.id DESC
) AS latest
WHERE state <> 'closed' AND NOT EXISTS (
    SELECT 1 FROM flujo_model_guards g
    WHERE g.guard = 'breaker' AND (
        (latest.model LIKE translate(g.model, '*?', chr(37) || '_') AND g.cleared_at > latest.at)
        OR (latest.model = g.model AND coalesce(g.edits ->> 'enabled', g.from_file ->> 'enabled') = 'false')
    )
)
