-- What a worker that stops gives back: attempts that it works on, and those whose message it has taken and not claimed. Handed back is not
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
story AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT f.run_id, f.key, f.fence, 'attempt.handed_back', 'info', jsonb_build_object('worker', %(worker)s::text)
    FROM freed f WHERE f.was = 'running'
)
SELECT key FROM freed;
