-- The clock's time, when something becomes due next, and what has to happen before then. Parked runs and questions that never expire wait for no time.
WITH live AS (
    SELECT a.key, a.status, a.available_at FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
    WHERE a.ended_at IS NULL AND r.ended_at IS NULL AND r.status <> 'parked'
),
due (what, at) AS (
    SELECT 'attempt ' || key, available_at FROM live WHERE status IN ('ready', 'paused')
    UNION ALL SELECT 'the deadline of run ' || id, deadline_at FROM flujo_runs WHERE ended_at IS NULL
    UNION ALL SELECT 'admission of run ' || run_id, not_before FROM flujo_waiting_runs
    UNION ALL SELECT 'admission of run ' || w.run_id, p.until FROM flujo_waiting_runs w JOIN flujo_gate_places p ON p.gate = w.gate
    WHERE p.until > now()
    UNION ALL SELECT 'schedule ' || name, due_at FROM flujo_schedules WHERE NOT is_paused AND %(fires)s::bool
),
busy (what) AS (
    SELECT 'attempt ' || key FROM live WHERE status IN ('queued', 'running')
    UNION ALL SELECT what FROM due WHERE at <= now()
    UNION ALL SELECT payload || ' hook of run ' || run_id FROM flujo_hook_calls
)
SELECT extract(epoch FROM now())::float8 AS now,
       (SELECT extract(epoch FROM min(at))::float8 FROM due WHERE at > now() AND at < now() + interval '100 years') AS due,
       array(SELECT what FROM busy ORDER BY what) AS busy
