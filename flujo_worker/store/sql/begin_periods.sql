-- Places that are held for a period: it counts from the beginning of the run, which may be long after its admission.
UPDATE flujo_gate_places p SET until = b.until
FROM (
    SELECT p.gate, p.run_id, r.started_at + make_interval(secs => g.period_s) AS until
    FROM flujo_gate_places p JOIN flujo_runs r ON r.id = p.run_id CROSS JOIN LATERAL jsonb_to_recordset(r.gates) AS g (name text, period_s float8)
    WHERE p.until = 'infinity' AND r.started_at IS NOT NULL AND g.name = p.gate FOR UPDATE OF p SKIP LOCKED
) b
WHERE p.gate = b.gate AND p.run_id = b.run_id;
