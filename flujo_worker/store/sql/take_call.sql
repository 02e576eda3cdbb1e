-- A call that names a worker was lost with it. A worker takes its own call again if it could not finish it: it knows what it is working on.
UPDATE flujo_hook_calls c
SET worker = %(worker)s, tries = least(c.tries, 1000000) + (c.worker IS NOT NULL)::int,
    losses_alone = least(c.losses_alone, 1000000) + (c.worker IS NOT NULL AND c.alone)::int, alone = %(room)s::text = 'alone'
WHERE c.run_id = %(run)s AND c.payload = %(payload)s AND c.attempt = %(attempt)s
  AND EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = %(worker)s AND w.lease_until > now())
  AND (
      c.worker IS NULL OR c.worker = %(worker)s
      OR (%(may_judge)s::bool AND NOT EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = c.worker AND w.lease_until > now()))
  )
RETURNING c.losses_alone;
