-- `paused` is a view: a question is open and nothing can run.
SELECT r.id, CASE WHEN r.status IN ('queued', 'running')
              AND EXISTS (SELECT 1 FROM flujo_attempts q WHERE q.run_id = r.id AND q.status = 'paused')
              AND NOT EXISTS (SELECT 1 FROM flujo_attempts q WHERE q.run_id = r.id AND q.status IN ('ready', 'queued', 'running'))
            THEN 'paused' ELSE r.status END AS status
FROM flujo_runs r WHERE r.id = ANY(%(runs)s::text[]);
