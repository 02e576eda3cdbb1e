-- A worker that can take a run which another one cannot take: it is alive, takes messages of that queue, and has the code of the run's plan, or has
-- let the run continue when it was parked for something else.
SELECT w.id FROM flujo_workers w
WHERE w.lease_until > now() AND w.ended_at IS NULL AND w.stop_requested_at IS NULL AND w.slots > 0 AND w.id <> %(but)s::text
  AND coalesce(%(queue)s::text = ANY(w.queues), true)
  AND (%(fingerprint)s::text = ANY(w.plans) OR w.id = (SELECT r.unparked_by FROM flujo_runs r WHERE r.id = %(run)s::text))
LIMIT 1;
