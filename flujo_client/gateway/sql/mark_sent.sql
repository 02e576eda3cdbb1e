-- Messages that were sent. `age` is seconds since just before the send, so a flush in between is seen. A row that was claimed since had its message,
-- and if it is ready again, it waits for another one. After a failover to a lagging replica, one may be held for a lane or at a gate again. A mark
-- does not wait for the disk: claims skip rows that it has locked, and a mark lost in a crash costs a duplicate message.
WITH setting AS (SELECT set_config('synchronous_commit', 'off', true)),
sent AS (
    SELECT a.key, m.age FROM flujo_attempts a
    JOIN unnest(%(keys)s::text[], %(ages)s::float8[]) AS m (key, age) ON m.key = a.key
    WHERE a.status = 'ready' AND a.fence = 0 AND a.available_at < now() + interval '100 years' ORDER BY a.key FOR UPDATE OF a SKIP LOCKED
)
UPDATE flujo_attempts a SET status = 'queued', sends = a.sends + 1, sent_at = now() - make_interval(secs => sent.age)
FROM sent, setting WHERE a.key = sent.key;
