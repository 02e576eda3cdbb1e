-- A new incarnation of a worker process. With `old`, it adopts what that process still runs, in the same statement, before
-- anybody judges: an attempt keeps its fence, so the outcome that is being worked on will be merged. Said again, because the
-- answer was lost, it gives the same answer. The process was started when its first incarnation was.
WITH born AS (
    INSERT INTO flujo_workers (id, host, pid, build, slots, schema, code_build, lease_until, started_at)
    VALUES (%(id)s, %(host)s, %(pid)s, %(build)s, %(slots)s, %(schema)s, %(code_build)s, now() + make_interval(secs => %(lease_s)s),
            coalesce((SELECT started_at FROM flujo_workers WHERE id = %(old)s), now()))
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
),
dead AS (
    UPDATE flujo_workers SET ended_at = now(), lease_until = least(lease_until, now()) WHERE id = %(old)s
),
held AS (
    SELECT key FROM flujo_attempts WHERE worker IN (%(old)s, %(id)s) AND ended_at IS NULL AND status = 'running' AND key = ANY(%(keys)s::text[])
    ORDER BY key FOR UPDATE
)
UPDATE flujo_attempts a SET worker = %(id)s FROM held WHERE a.key = held.key RETURNING a.key, a.fence;
