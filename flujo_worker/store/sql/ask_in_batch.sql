INSERT INTO flujo_batch_requests AS r (id, run_id, place, pool, live_at, size, body)
VALUES (%(id)s::text, %(run)s::text, %(place)s::text, %(pool)s::text, now() + make_interval(secs => %(deadline_s)s::float8), %(size)s::int, %(body)s::bytea)
ON CONFLICT (id) DO UPDATE SET id = r.id
RETURNING batch IS NOT NULL AS is_taken, result, extract(epoch FROM now() - asked_at)::float8 AS age_s, extract(epoch FROM live_at - now())::float8 AS left_s;
