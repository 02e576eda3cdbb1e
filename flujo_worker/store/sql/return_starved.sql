-- An attempt that timed out while its process was starved waits in its row, without a worker, and retains its number. No loss is counted.
-- After `most` times the row is unchanged, and its worker concludes a normal failure. The reservation stays: some of it is spent.
WITH held AS (
    SELECT a.key, a.run_id, a.fence, 1 + (
        SELECT count(*) FROM flujo_events e WHERE e.run_id = a.run_id AND e.attempt = a.key AND e.name = %(name)s::text
    ) AS times
    FROM flujo_attempts a WHERE a.key = %(key)s::text AND a.status = 'running' AND a.fence = %(fence)s::int
      AND (%(claim_id)s::uuid IS NULL OR a.claim_id = %(claim_id)s::uuid)
    FOR UPDATE OF a
),
freed AS (
    UPDATE flujo_attempts a
    SET status = 'ready', worker = NULL, started_at = NULL, sends = 0, waits_for = NULL, waits_since = NULL, available_at = now() + make_interval(secs => %(delay_s)s::float8)
    FROM held h WHERE a.key = h.key AND h.times <= %(most)s::int RETURNING a.key
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT h.run_id, h.key, h.fence, %(name)s::text, %(level)s::text, %(data)s::text::jsonb || jsonb_build_object('times', h.times)
    FROM held h JOIN freed f ON f.key = h.key
)
SELECT 1 AS moved FROM freed;
