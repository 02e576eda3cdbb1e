-- The state of waiting runs, and of their gates' places, once these are locked. A run whose rows are locked waits for a later admission.
WITH waiting AS (SELECT w.* FROM flujo_waiting_runs w WHERE w.run_id = ANY(%(runs)s::text[]) FOR UPDATE SKIP LOCKED),
free AS (SELECT a.key FROM flujo_attempts a WHERE a.key = ANY(ARRAY(SELECT key FROM waiting)) FOR NO KEY UPDATE SKIP LOCKED)
SELECT w.run_id, w.gate, w.flow, w.priority, w.arrived, r.gates::text AS gates,
       r.id IS NOT NULL AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now()) AS may_run,
       ARRAY(SELECT p.gate FROM flujo_gate_places p WHERE p.run_id = w.run_id) AS held,
       (SELECT jsonb_object_agg(g.name, (SELECT count(*) FROM flujo_gate_places p WHERE p.gate = g.name AND (p.until IS NULL OR p.until > now())))
        FROM unnest(%(gates)s::text[]) AS g (name))::text AS taken
FROM waiting w LEFT JOIN flujo_runs r ON r.id = w.run_id
WHERE w.key = ANY(ARRAY(SELECT key FROM free)) OR NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.key = w.key);
