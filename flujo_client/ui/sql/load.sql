-- The attempts that run, by queue and worker; and those that could, by queue: neither those of parked runs nor those that wait for a time.
SELECT a.queue, CASE WHEN a.status = 'running' THEN a.worker END AS worker, count(*)::int AS attempts,
       extract(epoch FROM now() - min(greatest(a.created_at, a.available_at)))::float8 AS oldest_s
FROM flujo_attempts a
WHERE a.ended_at IS NULL AND a.status IN ('ready', 'queued', 'running') AND a.available_at <= now()
  AND (a.status = 'running' OR a.run_id NOT IN (SELECT id FROM flujo_runs WHERE status = 'parked')) GROUP BY 1, 2;
