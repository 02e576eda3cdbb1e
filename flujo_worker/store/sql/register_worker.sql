-- A new incarnation of a worker process. With `old`, it adopts the attempts that the process still runs, in the same statement, before they
-- count as lost: an attempt retains its fence, so its outcome will be merged. Repeated, because the answer was lost, it gives the same
-- answer. The process was started when its first incarnation was. An attempt with a permit is not adopted, and is lost, if others have its
-- place by now: it was free while the lease was over. The limits are held (hold_limits_of.sql).
WITH born AS (
    INSERT INTO flujo_workers (id, host, pid, build, slots, schema, code_build, queues, lease_until, started_at, plans)
    VALUES (%(id)s, %(host)s, %(pid)s, %(build)s, %(slots)s, %(schema)s, %(code_build)s, %(queues)s::text[], now() + make_interval(secs => %(lease_s)s),
            coalesce((SELECT started_at FROM flujo_workers WHERE id = %(old)s), now()),
            coalesce((SELECT plans FROM flujo_workers WHERE id = %(old)s), '{}'))
    ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
),
dead AS (
    UPDATE flujo_workers SET ended_at = now(), lease_until = least(lease_until, now())
    WHERE id = (SELECT w.id FROM flujo_workers w WHERE w.id = %(old)s FOR NO KEY UPDATE SKIP LOCKED)  -- else its lease runs out
),
held AS (
    SELECT key FROM flujo_attempts WHERE worker IN (%(old)s, %(id)s) AND ended_at IS NULL AND status = 'running' AND key = ANY(%(keys)s::text[])
    ORDER BY key FOR UPDATE
),
others AS (
    SELECT p.name, count(*) AS in_use FROM flujo_permits p
    JOIN flujo_attempts a ON a.key = p.key AND a.fence = p.fence AND a.status = 'running'
    JOIN flujo_workers w ON w.id = a.worker AND w.lease_until > now()
    WHERE p.fence IS NOT NULL AND p.key <> ALL(%(keys)s::text[]) GROUP BY p.name
),
placed AS (
    SELECT m.key, row_number() OVER (PARTITION BY m.name ORDER BY m.turn) + coalesce(o.in_use, 0) <= l.at_once AS has_room
    FROM flujo_permits m JOIN held h ON h.key = m.key JOIN flujo_attempts a ON a.key = m.key AND a.fence = m.fence
    JOIN flujo_limits l ON l.name = m.name LEFT JOIN others o ON o.name = m.name
)
UPDATE flujo_attempts a SET worker = %(id)s FROM held h LEFT JOIN placed m ON m.key = h.key
WHERE a.key = h.key AND coalesce(m.has_room, true) RETURNING a.key, a.fence;
