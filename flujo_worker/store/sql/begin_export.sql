-- Export traces, unless another living worker does, and return up to when all that has ended is in the rows: a transaction that is still open may end
-- rows with the time of its beginning. Those of workers last less than ten seconds. Clients end no rows. What began just now may not be listed yet.
-- The first export begins a minute before: workers perform attempts as soon as they start.
UPDATE flujo_exports e
SET worker = %(worker)s::text, looked_at = now(),
    positions = (SELECT jsonb_object_agg(k, jsonb_build_array(now() - interval '1 minute', ''))
                 FROM unnest('{run, scope, attempt, unit}'::text[]) AS k) || e.positions
WHERE e.worker = %(worker)s::text OR e.looked_at IS NULL OR e.looked_at < now() - make_interval(secs => %(patience_s)s::float8)
   OR NOT EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = e.worker AND w.ended_at IS NULL AND w.lease_until > now())
RETURNING e.positions, now() AS now, least(now(), (
    SELECT min(coalesce(a.xact_start, now() - interval '10 s')) FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
      AND (a.xact_start > now() - interval '10 s' OR coalesce(a.state, 'disabled') = 'disabled') AND has_table_privilege(a.usesysid, 'flujo_attempts', 'DELETE')
)) - make_interval(secs => %(margin_s)s::float8) AS until;
