-- For recovery times: in seconds of the server's clock.
SELECT a.key, a.status = 'succeeded' AS is_merged,
       extract(epoch FROM a.started_at)::float8 AS started_at, extract(epoch FROM a.ended_at)::float8 AS ended_at
FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND a.ended_at IS NOT NULL ORDER BY a.ended_at;
