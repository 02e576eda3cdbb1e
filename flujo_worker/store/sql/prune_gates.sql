DELETE FROM flujo_gates g
WHERE g.touched_at < now() - interval '1 hour'
  AND NOT EXISTS (SELECT 1 FROM flujo_gate_places p WHERE p.gate = g.name) AND NOT EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.gate = g.name);
