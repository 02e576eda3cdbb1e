-- The attempts at a run's steps that a stream shows: those that succeeded or run, or those that succeeded at these places (`address:step`).
SELECT a.address, a.step, a.number AS attempt, a.status, a.output FROM flujo_attempts a
WHERE a.run_id = %(run)s AND a.kind IN ('step', 'resume')
  AND (a.status = 'succeeded' OR (a.status = 'running' AND %(places)s::text[] IS NULL))
  AND (%(places)s::text[] IS NULL OR a.address || ':' || a.step = ANY(%(places)s::text[]))
ORDER BY a.created_at, a.number, a.key COLLATE "C";
