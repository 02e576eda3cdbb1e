-- The attempts at a run's steps that a stream shows: those that succeeded or run, or all that ended at these places (`address:step`).
SELECT a.address, a.step, a.number AS attempt, a.status, a.output
FROM flujo_attempts a
WHERE a.run_id = %(run)s AND a.kind IN ('step', 'resume')
  AND CASE
          WHEN %(places)s::text[] IS NULL THEN a.status IN ('succeeded', 'running')
          ELSE a.ended_at IS NOT NULL AND a.address || ':' || a.step = ANY(%(places)s::text[])
      END
ORDER BY a.created_at, a.number, a.key COLLATE "C";
