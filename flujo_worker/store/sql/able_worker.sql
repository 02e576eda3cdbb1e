-- A live worker that takes messages of a queue and can continue a run that another worker cannot: it has the code of the run's plan, or has unparked
-- the run before.
SELECT w.id FROM flujo_workers w
WHERE w.lease_until > now() AND w.ended_at IS NULL AND w.stop_requested_at IS NULL AND w.slots > 0 AND w.id <> %(but)s::text
  AND coalesce(%(queue)s::text = ANY(w.queues), true)
  AND (%(fingerprint)s::text = ANY(w.plans) OR w.id = (SELECT r.unparked_by FROM flujo_runs r WHERE r.id = %(run)s::text))
LIMIT 1;
