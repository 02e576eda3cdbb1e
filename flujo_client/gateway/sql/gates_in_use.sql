-- The gates at which runs wait, those with the longest queues first. The row of a cancelled run stays until the next admission at its gate.
SELECT w.gate AS name, max(w.most) AS most, count(*)::int AS waiting,
       (SELECT count(*) FROM flujo_gate_places p WHERE p.gate = w.gate AND (p.until IS NULL OR p.until > now()))::int AS taken
FROM flujo_waiting_runs w JOIN flujo_runs r ON r.id = w.run_id AND r.ended_at IS NULL
GROUP BY w.gate ORDER BY waiting DESC, w.gate LIMIT %(limit)s::int;
