-- Runs in the background that have shown no sign of life for so long are asked to stop, with the error they fail with; a worker ends them. A sign of
-- life is work that was made, begun or ended since, a worker at it, a time it waits for, or a question to a person; in the run or in a child run that
-- it waits for. FOR UPDATE waits for merges and first claims under way, reads the run again after them, and nothing is claimed or merged after it.
WITH stale AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.parent_run IS NOT NULL AND r.parent_address IS NULL AND r.status IN ('queued', 'running') AND r.cancel_requested_at IS NULL
      AND greatest(r.created_at, r.started_at) < now() - make_interval(secs => %(older_s)s::float8)
      AND NOT EXISTS (
          WITH RECURSIVE kin (id) AS (
              SELECT r.id UNION ALL SELECT c.id FROM kin JOIN flujo_runs c ON c.parent_run = kin.id AND c.parent_address IS NOT NULL
          )
          SELECT 1 FROM kin JOIN flujo_attempts a ON a.run_id = kin.id
          WHERE greatest(a.created_at, a.started_at, a.ended_at) > now() - make_interval(secs => %(older_s)s::float8)
             OR a.status = 'paused'
             OR (a.status = 'ready' AND a.available_at > now() AND a.available_at < 'infinity')
             OR (a.status = 'running' AND EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = a.worker AND w.lease_until > now()))
      )
    FOR UPDATE OF r SKIP LOCKED
),
failed AS (
    UPDATE flujo_runs r SET cancel_requested_at = now(), error = %(error)s::jsonb, reason = %(reason)s::text
    FROM stale WHERE r.id = stale.id RETURNING r.id
),
asked AS (INSERT INTO flujo_inputs (run_id, kind, note) SELECT id, 'cancel', %(reason)s::text FROM failed),
story AS (
    INSERT INTO flujo_events (run_id, name, level, data)
    SELECT id, 'background.stale', 'error', jsonb_build_object('reason', %(reason)s::text) FROM failed
)
SELECT id FROM failed ORDER BY id;
