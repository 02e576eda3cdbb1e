-- Live runs that nothing can move: no attempt is live except held ones, no lane is idle for them, none waits for a person, there is no awaited child
-- run, and no join can be signalled. Most live runs are busy: an attempt can move them. All these are left out at once, by the indexes of what is live. The others are looked
-- up, and OFFSET 0 keeps each question about them a look-up: a join would read all live work.
WITH live AS MATERIALIZED (SELECT id FROM flujo_runs WHERE status IN ('queued', 'running', 'parked') AND cancel_requested_at IS NULL),
busy AS MATERIALIZED (
    SELECT run_id FROM flujo_attempts
    WHERE ended_at IS NULL AND available_at >= (SELECT live_since FROM flujo_sweeps) AND (status = 'paused' OR available_at < 'infinity')
),
idle AS MATERIALIZED (SELECT id, created_at FROM flujo_runs WHERE id = ANY(ARRAY(SELECT id FROM live EXCEPT SELECT run_id FROM busy)))
SELECT r.id FROM idle r
WHERE NOT EXISTS (
      SELECT 1 FROM flujo_attempts a
      WHERE a.run_id = r.id AND a.ended_at IS NULL AND (a.status = 'paused' OR a.available_at < 'infinity') OFFSET 0
  )
  AND NOT EXISTS (
      SELECT 1 FROM flujo_scopes s
      WHERE s.run_id = r.id AND s.waiting AND s.status = 'open' AND (
          s.aborted OR EXISTS (
              SELECT 1 FROM flujo_runs k
              WHERE k.parent_run = s.run_id AND k.parent_address = s.address AND k.status IN ('queued', 'running', 'parked') OFFSET 0
          )
          OR (
-- include joinable
          )
          OR (
-- include idle_lane
          )
      )
      OFFSET 0
  )
ORDER BY r.created_at LIMIT %(limit)s;
