SELECT i.run_id, r.name AS pipeline, i.step, i.actor, i.note, i.at FROM flujo_inputs i JOIN flujo_runs r ON r.id = i.run_id
WHERE i.kind = 'answer' AND i.name IS NULL ORDER BY i.id DESC LIMIT 20;
