-- One run as its page shows it. Its values may be large, so they are read apart.
SELECT r.id, r.name, r.reference, r.fingerprint, p.version, p.build, r.reason, r.tenant, r.queue, r.root, r.metadata,
       CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status,
       r.created_at, r.started_at, r.ended_at, r.deadline_at, r.parent_run, r.retry_of, r.forked_from, r.from_step, r.retried_as, r.replaced_by,
       now() AS now
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint WHERE r.id = %(run)s;
