SELECT s.run_id, s.address FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id
WHERE s.waiting AND s.status = 'open' AND s.aborted AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
  AND EXISTS (SELECT 1 FROM flujo_scopes c WHERE c.run_id = s.run_id AND c.parent = s.address AND c.status = 'open' OFFSET 0)
ORDER BY s.opened_at LIMIT %(limit)s;
