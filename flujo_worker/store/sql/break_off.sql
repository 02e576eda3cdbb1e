-- Mark a live run that fails for a reason outside its attempts: from this commit on nothing of it is claimed or merged, and this process or
-- a sweep winds it down and ends it as failed. With a fence only if that claim is still the attempt's: a failover may have given another
-- claim the same fence. FOR UPDATE meets the merges' FOR KEY SHARE, as a cancel does.
WITH held AS (
    SELECT id FROM flujo_runs
    WHERE id = %(run)s::text AND ended_at IS NULL AND cancel_requested_at IS NULL
      AND (%(fence)s::int IS NULL OR EXISTS (
          SELECT 1 FROM flujo_attempts a WHERE a.key = %(key)s::text AND a.status = 'running' AND a.fence = %(fence)s::int AND (%(claim_id)s::uuid IS NULL OR a.claim_id = %(claim_id)s::uuid)
      ))
    FOR UPDATE
),
broken AS (
    UPDATE flujo_runs r SET cancel_requested_at = now(), error = %(error)s::jsonb, failed_key = %(key)s::text FROM held WHERE r.id = held.id RETURNING r.id
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, name, level, data)
    SELECT id, %(key)s::text, %(name)s::text, 'error', %(data)s::jsonb FROM broken WHERE %(name)s::text IS NOT NULL
)
SELECT id FROM broken;
