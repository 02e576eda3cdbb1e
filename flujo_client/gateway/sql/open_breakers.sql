-- The models whose circuit breaker was last seen open or half open, within a day.
SELECT model, state, since_s FROM (
    SELECT DISTINCT ON (e.data ->> 'model') e.data ->> 'model' AS model, substr(e.name, length('flujo.breaker.') + 1) AS state,
           extract(epoch FROM now() - e.at)::float8 AS since_s
    FROM flujo_events e
    WHERE e.name IN ('flujo.breaker.opened', 'flujo.breaker.half_open', 'flujo.breaker.closed') AND e.at > now() - interval '1 day'
    ORDER BY e.data ->> 'model', e.at DESC, e.id DESC
) AS latest
WHERE state <> 'closed' ORDER BY model
LIMIT %(limit)s::int;
