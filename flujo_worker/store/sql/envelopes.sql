-- The values of envelopes, which are never stored. JSON comes as text, so that each row is read separately.
SELECT a.key, a.address, a.step, a.number, a.kind, a.queue, a.guidance, a.units_from, a.pauses,
       s.version, s.output AS input, s.context, s.lanes::text, s.metadata ->> 'flujo.code' AS code,
       r.id AS run, r.reference, r.fingerprint, r.queue AS run_queue, r.priority, r.tenant, r.trace_parent, r.root, r.aros::text, r.settings::text, r.limits::text, r.gates IS NOT NULL AS is_gated,
       extract(epoch FROM r.deadline_at)::float8 AS deadline
FROM flujo_attempts a LEFT JOIN flujo_scopes s ON s.run_id = a.run_id AND s.address = a.address JOIN flujo_runs r ON r.id = a.run_id
WHERE a.key = ANY(%(keys)s::text[]);
