-- Expire questions. If an answer arrives at the same moment, only one of the two gets the row.
WITH over AS (
    SELECT a.key FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
    WHERE a.question IS NOT NULL AND a.ended_at IS NULL AND a.status = 'paused' AND a.available_at <= now()
      AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
    ORDER BY a.key LIMIT %(limit)s FOR UPDATE OF a SKIP LOCKED
),
closed AS (UPDATE flujo_attempts a SET status = 'ready' FROM over WHERE a.key = over.key RETURNING a.run_id, a.key, a.step)
INSERT INTO flujo_events (run_id, attempt, name, level, data)
SELECT run_id, key, 'run.unanswered', 'warning', jsonb_build_object('step', step) FROM closed
RETURNING 1;
