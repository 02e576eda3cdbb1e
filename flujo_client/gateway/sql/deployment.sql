-- What `flujo doctor` judges, in one row. A session of ours may be read-only by itself; its `reset_val` is the server's.
WITH ours AS (
    SELECT c.oid, c.relname FROM pg_class c
    WHERE starts_with(c.relname, 'flujo_') AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND pg_table_is_visible(c.oid)
),
denied AS (
    SELECT p.word || ' on ' || o.relname AS what FROM ours o
    CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) p (word)
    WHERE NOT has_table_privilege(o.oid, p.word) AND (p.word = 'SELECT' OR o.relname <> 'flujo_schema_version')
    UNION ALL SELECT 'CREATE in schema ' || current_schema() WHERE NOT has_schema_privilege(current_schema(), 'CREATE')
      AND NOT EXISTS (SELECT 1 FROM pg_proc f WHERE f.oid = to_regprocedure('flujo_keep_event_partitions(int, int, int)') AND f.prosecdef)
),
waiting AS (
    SELECT queue, count(*) AS count FROM flujo_attempts
    WHERE ended_at IS NULL AND status IN ('ready', 'queued') AND available_at < 'infinity' GROUP BY queue
),
lately AS (SELECT DISTINCT fingerprint FROM (SELECT fingerprint FROM flujo_runs ORDER BY created_at DESC LIMIT 1000) r),
models AS (
    SELECT DISTINCT m #>> '{}' AS model FROM flujo_pipelines p JOIN lately l ON l.fingerprint = p.fingerprint
    CROSS JOIN LATERAL jsonb_path_query(p.plan, 'strict $.**.model ? (@.type() == "string")') m
)
SELECT current_setting('server_version') AS version, extract(epoch FROM clock_timestamp())::float8 AS clock,
       pg_is_in_recovery() OR (SELECT reset_val = 'on' FROM pg_settings WHERE name = 'default_transaction_read_only') AS is_read_only,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       current_setting('max_connections')::int AS max_connections, (SELECT coalesce(jsonb_agg(what ORDER BY what), '[]') FROM denied) AS not_granted,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(queue, count) ORDER BY queue), '[]') FROM waiting) AS waiting,
       (SELECT coalesce(jsonb_agg(model ORDER BY model), '[]') FROM models) AS models;
