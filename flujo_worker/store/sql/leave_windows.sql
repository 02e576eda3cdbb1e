-- A run that waits for a person or sleeps for more than a minute, itself or in a child run, gives back its places in windows, if any run waits at a
-- gate that is not of its time and nothing else of it could run. Found from the questions and sleeps: there are fewer of them than of places.
WITH RECURSIVE asking (run) AS (
    SELECT a.run_id FROM flujo_attempts a
    WHERE (a.question IS NOT NULL AND a.status = 'paused' OR a.waits_for = 'sleep' AND a.status = 'ready' AND a.available_at > now() + interval '1 min')
      AND a.ended_at IS NULL
      AND (EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.gate < %(start)s::text) OR EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.gate > %(start)s::text))
    UNION SELECT r.parent_run FROM asking q CROSS JOIN LATERAL (SELECT r.parent_run, r.parent_address FROM flujo_runs r WHERE r.id = q.run OFFSET 0) r
    WHERE r.parent_run IS NOT NULL AND r.parent_address IS NOT NULL
),
paused AS MATERIALIZED (
    SELECT p.gate, p.run_id FROM asking q JOIN flujo_gate_places p ON p.run_id = q.run WHERE p.is_window FOR UPDATE OF p SKIP LOCKED
)
DELETE FROM flujo_gate_places d USING paused p WHERE d.gate = p.gate AND d.run_id = p.run_id AND NOT EXISTS (
    SELECT FROM flujo_kin(p.run_id) k JOIN flujo_attempts a ON a.run_id = k
    WHERE a.ended_at IS NULL AND a.status IN ('ready', 'queued', 'running') AND (a.status <> 'ready' OR (
        a.available_at < 'infinity' AND (a.waits_for IS DISTINCT FROM 'sleep' OR a.available_at <= now() + interval '1 min'))));
