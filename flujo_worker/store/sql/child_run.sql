SELECT r.id, r.parent_run, r.parent_address, r.status, r.reason, r.error::text, coalesce(r.output, r.input) AS output, s.context
FROM flujo_runs r JOIN flujo_scopes s ON s.run_id = r.id AND s.address = r.root
WHERE r.id = %(run)s AND r.parent_address IS NOT NULL;
