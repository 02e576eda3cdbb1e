-- Live runs that nothing can move: no attempt is live except held ones, none waits for a person, there is no awaited child run, and no join
-- can be signalled. OFFSET 0 keeps each question a look-up for its row: a join would read all live work.
SELECT r.id FROM flujo_runs r
WHERE r.status IN ('queued', 'running', 'parked') AND r.cancel_requested_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.run_id = r.id AND a.ended_at IS NULL AND a.status IN ('ready', 'queued', 'running') AND a.available_at < 'infinity' OFFSET 0)
  AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.run_id = r.id AND a.ended_at IS NULL AND a.status = 'paused' OFFSET 0)
  AND NOT EXISTS (
      SELECT 1 FROM flujo_scopes s
      WHERE s.run_id = r.id AND s.waiting AND s.status = 'open' AND (
          s.aborted OR EXISTS (
              SELECT 1 FROM flujo_runs k
              WHERE k.parent_run = s.run_id AND k.parent_address = s.address AND k.status IN ('queued', 'running', 'parked') OFFSET 0
          )
          OR (
              NOT EXISTS (SELECT 1 FROM flujo_scopes c WHERE c.run_id = s.run_id AND c.parent = s.address AND c.status = 'open' OFFSET 0)
              AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.key = s.run_id || ':' || s.address || ':' || s.step || ':join' OFFSET 0)
          )
      )
      OFFSET 0
  )
ORDER BY r.created_at LIMIT %(limit)s;
