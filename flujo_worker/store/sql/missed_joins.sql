-- Fan-outs whose branches are all closed, and imports whose child run has ended, without a join signal. OFFSET 0 as in stranded.sql.
SELECT s.run_id, s.address FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id
WHERE s.waiting AND s.status = 'open' AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL AND
-- include joinable
  AND coalesce(
      (SELECT max(c.closed_at) FROM flujo_scopes c WHERE c.run_id = s.run_id AND c.parent = s.address),
      (SELECT max(k.ended_at) FROM flujo_runs k WHERE k.parent_run = s.run_id AND k.parent_address = s.address), s.opened_at
  ) < now() - make_interval(secs => %(older_s)s)
ORDER BY s.opened_at LIMIT %(limit)s;
