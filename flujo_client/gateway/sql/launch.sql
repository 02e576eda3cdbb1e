SELECT r.launched_with, a.key, a.address, a.step, a.kind
FROM flujo_runs r JOIN flujo_attempts a ON a.run_id = r.id AND a.address = r.root
WHERE r.id = %(run)s AND r.parent_run IS NOT NULL AND r.parent_address IS NULL ORDER BY a.created_at, a.number LIMIT 1;
