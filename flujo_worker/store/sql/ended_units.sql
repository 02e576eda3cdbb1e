SELECT u.settled_at AS ended, q.key, r.id AS run, r.trace_parent, r.name AS pipeline, r.tenant, u.began_at AS began, u.key AS attempt, u.operation, u.effect,
       u.tries, u.input_tokens, u.output_tokens, u.requests, u.cost_usd, u.model
FROM flujo_units u JOIN flujo_runs r ON r.id = u.run_id
CROSS JOIN LATERAL (SELECT u.run_id || ':' || u.place || ':' || encode(u.digest, 'hex') || ':' || u.nth AS key) q
WHERE u.settled_at >= %(since)s::timestamptz AND u.settled_at < %(until)s::timestamptz AND (u.settled_at, q.key) > (%(since)s::timestamptz, %(after)s::text)
ORDER BY u.settled_at, q.key LIMIT %(limit)s::int;
