-- Attempts that took their worker with them each time they were claimed: it was lost as often as is allowed.
-- The last claim is closed under a fence of our own, so that nobody else concludes it. The row goes on naming the worker that
-- was lost: if whoever took it cannot close it, or never hears this answer, the next sweep takes it again.
WITH taken AS (
    SELECT p.key FROM flujo_attempts p JOIN flujo_runs r ON r.id = p.run_id
    WHERE p.status = 'running' AND p.losses >= %(max_lost)s AND r.status IN ('running', 'parked') AND r.cancel_requested_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = p.worker AND w.lease_until > now())
    ORDER BY p.key LIMIT %(limit)s FOR UPDATE OF p SKIP LOCKED
)
UPDATE flujo_attempts a SET fence = least(a.fence, 2147483646) + 1 FROM taken WHERE a.key = taken.key
RETURNING a.key, a.fence;
