-- Release the attempts of a worker that stops: those that it runs, and those whose message it has taken and not claimed. No loss is counted. Once it
-- has happened so often that the step may be what stops its workers, the attempt is left without a worker: a sweep counts a loss. If the process is
-- broken, those that it runs are suspects. One whose row is locked is lost when the lease ends. Reservations stay: some may be spent.
WITH held AS (
    SELECT a.key, a.run_id, a.fence, CASE a.status WHEN 'running' THEN 1 + (
        SELECT count(*) FROM flujo_events e WHERE e.run_id = a.run_id AND e.attempt = a.key AND e.name = 'attempt.handed_back'
    ) END AS times
    FROM flujo_attempts a
    WHERE a.key = ANY(%(keys)s::text[]) AND (a.status = 'queued' OR (a.status = 'running' AND a.worker = %(worker)s::text))
    ORDER BY a.key FOR UPDATE OF a SKIP LOCKED
),
freed AS (
    UPDATE flujo_attempts a
    SET worker = NULL, available_at = now(), sends = 0, suspicions = a.suspicions + (h.times IS NOT NULL AND %(is_broken)s::bool)::int,
        waits_for = CASE WHEN h.times IS NULL THEN a.waits_for END, waits_since = CASE WHEN h.times IS NULL THEN a.waits_since END,
        loss = CASE WHEN h.times > %(most)s::int THEN jsonb_build_object('worker', NULL, 'how', NULL, 'at', now()) ELSE a.loss END,
        status = CASE WHEN h.times > %(most)s::int THEN a.status ELSE 'ready' END, started_at = CASE WHEN h.times > %(most)s::int THEN a.started_at END
    FROM held h WHERE a.key = h.key RETURNING a.key, a.status
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT run_id, key, fence, 'attempt.handed_back', CASE WHEN times < %(often)s::int THEN 'info' ELSE 'warning' END,
           jsonb_build_object('worker', %(worker)s::text, 'times', times)
    FROM held WHERE times IS NOT NULL
)
SELECT key FROM freed WHERE status = 'ready';
