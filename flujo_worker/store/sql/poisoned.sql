-- Attempts that have used up their losses while running alone, and are lost alone again. The last claim is closed under a new fence, so that it is
-- concluded only here. The row still names the lost worker: if the caller cannot close it, or the answer is lost, the next sweep takes it again.
WITH taken AS (
    SELECT p.key FROM flujo_attempts p JOIN flujo_runs r ON r.id = p.run_id
    WHERE p.ended_at IS NULL AND p.available_at >= (SELECT live_since FROM flujo_sweeps)
      AND p.status = 'running' AND p.losses_alone >= %(max_lost)s AND (p.worker IS NULL OR p.alone)
      AND r.ended_at IS NULL AND r.status <> 'queued' AND r.cancel_requested_at IS NULL
      AND (SELECT j.lease_until > now() FROM flujo_workers j WHERE j.id = %(judge)s)
      AND NOT EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = p.worker AND w.lease_until > now())
    ORDER BY p.key LIMIT %(limit)s FOR UPDATE OF p SKIP LOCKED
)
UPDATE flujo_attempts a SET fence = least(a.fence, 2147483646) + 1, loss =
-- include latest_loss
FROM taken WHERE a.key = taken.key RETURNING a.key, a.fence, a.loss ->> 'how' AS how;
