-- Delete units of steps that ended so many seconds ago and have no open attempt; of those that were possibly done and paid more often than they have
-- answers, only the values. Looks at so many places after this one, and gives how many units it has dealt with and the last place. Locked units wait.
WITH RECURSIVE setting AS (
    -- Units that are not exported yet are kept for a while.
    SELECT now() - greatest(make_interval(secs => %(older_s)s::float8),
                            least(coalesce(now() - x.exported, interval '0'), make_interval(secs => %(older_s)s::float8 + %(waits_s)s::float8))) AS since
    FROM (SELECT min((v.value ->> 0)::timestamptz) AS exported FROM flujo_exports e, jsonb_each(e.positions) v) x
),
place (run_id, place, n) AS (
    (SELECT run_id, place, 1 FROM flujo_units WHERE (run_id, place) > (%(run)s::text, %(place)s::text) ORDER BY run_id, place LIMIT 1)
    UNION ALL SELECT u.run_id, u.place, p.n + 1 FROM place p CROSS JOIN LATERAL (
        SELECT run_id, place FROM flujo_units WHERE (run_id, place) > (p.run_id, p.place) ORDER BY run_id, place LIMIT 1
    ) u
    WHERE p.n < %(limit)s::int
),
ended AS MATERIALIZED (
    SELECT p.run_id, p.place
    FROM setting s CROSS JOIN place p CROSS JOIN LATERAL (SELECT key FROM flujo_units u WHERE (u.run_id, u.place) = (p.run_id, p.place) LIMIT 1) u
    JOIN flujo_attempts a ON a.key = u.key AND a.ended_at < s.since
    WHERE NOT EXISTS (SELECT FROM flujo_attempts o WHERE o.run_id = p.run_id AND o.address = a.address AND o.step = a.step AND o.ended_at IS NULL)
      AND NOT EXISTS (SELECT FROM flujo_attempts o WHERE o.run_id = p.run_id AND o.address = a.address AND o.step = a.step AND o.ended_at >= s.since)
),
held AS MATERIALIZED (
    SELECT u.run_id, u.place, u.digest, u.nth, u.tries = 1 AND u.settled_at IS NOT NULL AS is_certain
    FROM ended e JOIN flujo_units u ON (u.run_id, u.place) = (e.run_id, e.place)
    WHERE (u.tries = 1 AND u.settled_at IS NOT NULL) OR u.answer IS NOT NULL OR u.asked IS NOT NULL LIMIT %(units)s::int FOR UPDATE OF u SKIP LOCKED
),
gone AS (
    DELETE FROM flujo_units u USING held h
    WHERE h.is_certain AND (u.run_id, u.place, u.digest, u.nth) = (h.run_id, h.place, h.digest, h.nth) RETURNING 1
),
requests AS (DELETE FROM flujo_batch_requests r USING ended e WHERE (r.run_id, r.place) = (e.run_id, e.place)),
bare AS (
    UPDATE flujo_units u SET answer = NULL, asked = NULL FROM held h
    WHERE NOT h.is_certain AND (u.run_id, u.place, u.digest, u.nth) = (h.run_id, h.place, h.digest, h.nth) RETURNING 1
)
SELECT (SELECT count(*) FROM held) AS gone, l.run_id, l.place FROM (SELECT 1) one LEFT JOIN (
    SELECT run_id, place FROM place ORDER BY n DESC LIMIT 1 OFFSET %(limit)s::int - 1
) l ON true;
