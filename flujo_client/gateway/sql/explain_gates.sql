-- Where queued runs wait for their admission: the gate's places, and the live runs before each in its queue.
SELECT w.run_id, w.gate AS name, w.most, w.not_before,
       (SELECT count(*)::int FROM flujo_gate_places p WHERE p.gate = w.gate AND (p.until IS NULL OR p.until > now())) AS taken,
       (SELECT min(p.until) FROM flujo_gate_places p WHERE p.gate = w.gate AND p.until > now()) AS next_at,
       (SELECT count(*)::int FROM flujo_waiting_runs o JOIN flujo_runs r ON r.id = o.run_id AND r.ended_at IS NULL
        WHERE o.gate = w.gate AND o.flow = w.flow AND (o.priority, o.arrived) < (w.priority, w.arrived)) AS ahead,
       (g.tree ->> 'period_s')::float8 AS period_s, coalesce((g.tree ->> 'wait_s')::float8, 0) AS wait_s
FROM flujo_waiting_runs w JOIN flujo_runs q ON q.id = w.run_id
LEFT JOIN LATERAL (SELECT e AS tree FROM jsonb_array_elements(q.gates) e WHERE e ->> 'name' = w.gate LIMIT 1) g ON true
WHERE w.run_id = ANY(%(runs)s::text[]);
