SELECT s.closed_at AS ended, s.run_id || ':' || s.address AS key, r.id AS run, r.trace_parent, r.name AS pipeline, r.tenant, s.opened_at AS began, s.status,
       s.closed_by AS reason, s.error ->> 'feedback' AS feedback, s.error ->> 'type_name' AS error, s.address, s.parent, r.root, s.kind,
       coalesce(nullif(s.name, ''), s.address) AS name, s.metadata ->> 'exit_reason' AS exit_reason, coalesce((s.metadata -> 'cache_hit') = 'true', false) AS is_cached
FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id
WHERE s.closed_at >= %(since)s::timestamptz AND s.closed_at < %(until)s::timestamptz
  AND (s.closed_at, s.run_id || ':' || s.address) > (%(since)s::timestamptz, %(after)s::text)
ORDER BY s.closed_at, s.run_id || ':' || s.address LIMIT %(limit)s::int;
