-- The state of a run that may be retried. A run whose cancel is not acknowledged yet counts as live.
SELECT r.id, r.reference, r.fingerprint, r.status, r.parent_run IS NOT NULL AS is_child, r.queue, r.priority, r.tenant, r.trace_parent,
       r.aros, r.settings, r.limits, r.gates, r.metadata, r.retried_as, extract(epoch FROM r.deadline_at - r.created_at)::float8 AS patience_s, p.plan, s.cursor
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint JOIN flujo_scopes s ON s.run_id = r.id AND s.address = r.root
WHERE r.id = %(run)s;
