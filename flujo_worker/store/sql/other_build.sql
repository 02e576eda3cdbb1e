-- A live worker that takes messages of a queue and has another build of the user's code than this one, unless one with another build has
-- given the attempt back already for a missing module: then no build is known to have it.
SELECT w.id FROM flujo_workers me JOIN flujo_workers w ON w.code_build IS DISTINCT FROM me.code_build
WHERE me.id = %(worker)s::text AND w.lease_until > now() AND w.ended_at IS NULL AND w.stop_requested_at IS NULL AND w.slots > 0
  AND coalesce(%(queue)s::text = ANY(w.queues), true)
  AND NOT EXISTS (
      SELECT 1 FROM flujo_events e WHERE e.run_id = %(run)s::text AND e.attempt = %(key)s::text AND e.name = 'attempt.lacks_module'
      AND e.data ->> 'build' IS DISTINCT FROM me.code_build
  )
LIMIT 1;
