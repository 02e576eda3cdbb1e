-- Events of some attempts, by their names, in the order in which they were emitted.
SELECT e.attempt, e.at, e.name, e.data FROM flujo_events e
WHERE e.run_id = ANY(%(runs)s::text[]) AND e.attempt = ANY(%(attempts)s::text[]) AND e.name = ANY(%(names)s::text[]) AND e.at >= %(since)s::timestamptz - interval '1 day'
ORDER BY e.attempt, e.id;
