-- Release the places of runs that have just ended, except those held until a time; return whether a run waits for one.
DELETE FROM flujo_gate_places d
USING (
    SELECT p.gate, p.run_id FROM flujo_gate_places p
    WHERE p.run_id = ANY(%(runs)s::text[]) AND p.until IS NULL AND NOT EXISTS (SELECT 1 FROM flujo_runs r WHERE r.id = p.run_id AND r.ended_at IS NULL OFFSET 0)
    FOR UPDATE SKIP LOCKED
) free
WHERE d.gate = free.gate AND d.run_id = free.run_id
RETURNING d.gate, EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.gate = d.gate) AS is_waited_at;
