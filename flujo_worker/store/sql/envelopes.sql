-- What an envelope is rebuilt from; it is never stored.
SELECT a.key, a.address, a.step, a.number, a.kind, a.queue, a.guidance,
       s.version, s.output AS input, s.context, s.lanes,
       r.id AS run, r.reference, r.fingerprint, r.queue AS run_queue, r.priority, r.tenant, r.trace_parent, r.root, r.aros, r.limits,
       extract(epoch FROM r.deadline_at)::float8 AS deadline
FROM flujo_attempts a
JOIN flujo_scopes s ON s.run_id = a.run_id AND s.address = a.address
JOIN flujo_runs r ON r.id = a.run_id
WHERE a.key = ANY(%(keys)s::text[]);
