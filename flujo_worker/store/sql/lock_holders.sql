-- The sessions that hold locks on our tables, or migrate them, the oldest transaction first: what a migration may be waiting for.
SELECT DISTINCT a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no application name') AS application,
    coalesce(a.state, 'unknown state') AS state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.granted AND pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (
      (l.locktype = 'advisory' AND (l.classid::bigint << 32) + l.objid::bigint = %(lock)s::bigint)
      OR l.relation IN (
          SELECT c.oid FROM pg_class c JOIN pg_class own USING (relnamespace)
          WHERE own.oid = to_regclass('flujo_schema_version') AND c.relname LIKE 'flujo\_%'
      )
  )
ORDER BY seconds DESC LIMIT 5
