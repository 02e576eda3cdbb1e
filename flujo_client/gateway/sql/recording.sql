SELECT r.id, r.status, r.reference, r.fingerprint, r.queue, r.tenant, r.root, r.from_step, p.plan, s.context IS NOT NULL AS has_context
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint JOIN flujo_scopes s ON s.run_id = r.id AND s.address = r.root
WHERE r.id = %(run)s;
