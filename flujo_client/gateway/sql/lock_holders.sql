-- The sessions whose transactions hold locks on our tables for longer than a while, the oldest first: what a statement may be waiting for. With
-- `lock` also those that only read, or that migrate under that advisory lock: a migration waits for them too. Sessions that wait for a lock
-- themselves are left out. Postgres shows state and age of other roles' sessions only to members of pg_read_all_stats; a session that
-- has a state but no transaction ended it after pg_locks was read, and holds nothing.
SELECT DISTINCT a.pid, coalesce(a.usename::text, 'unknown user') AS "user", coalesce(nullif(a.application_name, ''), 'no application name') AS application,
    coalesce(a.state, 'unknown state') AS state, extract(epoch FROM statement_timestamp() - a.xact_start)::float8 AS age_s
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.granted AND pid <> pg_backend_pid() AND a.wait_event_type IS DISTINCT FROM 'Lock'
  AND ((a.xact_start IS NULL AND a.state IS NULL) OR a.xact_start < statement_timestamp() - make_interval(secs => %(older_s)s::float8))
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (
      (l.locktype = 'advisory' AND (l.classid::bigint << 32) + l.objid::bigint = %(lock)s::bigint)
      OR (
          l.relation IN (
              SELECT c.oid FROM pg_class c JOIN pg_class own USING (relnamespace)
              WHERE own.oid = to_regclass('flujo_schema_version') AND starts_with(c.relname, 'flujo_')
          )
          AND (%(lock)s::bigint IS NOT NULL OR l.mode <> 'AccessShareLock')
      )
  )
ORDER BY age_s DESC NULLS LAST LIMIT 5;
