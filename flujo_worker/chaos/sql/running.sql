-- The attempts that a worker process runs now, except those that would kill it: these take several losses to end.
SELECT a.key FROM flujo_attempts a JOIN flujo_workers w ON w.id = a.worker JOIN flujo_runs r ON r.id = a.run_id
WHERE a.status = 'running' AND a.ended_at IS NULL AND w.pid = %(pid)s AND w.ended_at IS NULL
  AND r.metadata ->> 'chaos' = %(monkey)s AND r.metadata ->> 'shape' <> 'killer' ORDER BY a.key;
