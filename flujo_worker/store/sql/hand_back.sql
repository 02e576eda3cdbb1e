-- What a worker that stops releases: attempts that it works on, and those whose message it has taken and not claimed. Handed back is not
-- lost: no loss is counted. What an attempt holds from its budgets it keeps, as it may have spent some of it.
WITH held AS (
    SELECT a.key, a.status FROM flujo_attempts a
    WHERE a.key = ANY(%(keys)s::text[]) AND (a.status = 'queued' OR (a.status = 'running' AND a.worker = %(worker)s::text))
    ORDER BY a.key FOR UPDATE
),
freed AS (
    UPDATE flujo_attempts a SET status = 'ready', worker = NULL, started_at = NULL, available_at = now(), sends = 0
    FROM held WHERE a.key = held.key
    RETURNING a.run_id, a.key, a.fence, held.status AS was
),
told AS (
    SELECT f.run_id, f.key, f.fence, 1 + (
        SELECT count(*) FROM flujo_events e WHERE e.run_id = f.run_id AND e.attempt = f.key AND e.name = 'attempt.handed_back'
    ) AS times
    FROM freed f WHERE f.was = 'running'
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT run_id, key, fence, 'attempt.handed_back', CASE WHEN times < %(often)s::int THEN 'info' ELSE 'warning' END,
           jsonb_build_object('worker', %(worker)s::text, 'times', times)
    FROM told
)
SELECT key FROM freed;
