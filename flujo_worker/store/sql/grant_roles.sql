-- The statements that create the roles of `flujo migrate --roles`, in their order. Those that need more rights than the owner of the tables
-- has, such as creating a role, are left out if they were executed before.
WITH names AS (
    SELECT current_schema() AS home, p || '_migrate' AS owner, p || '_worker' AS worker, p || '_client' AS client, p || '_readonly' AS reader
    FROM (SELECT %(prefix)s::text AS p) AS given
),
role AS (
    SELECT place, name, to_regrole(quote_ident(name)) IS NULL AS is_new FROM names, unnest(ARRAY[owner, reader, client, worker]) WITH ORDINALITY AS r (name, place)
),
-- A client may read, and a worker may do what a client may: its steps enqueue runs.
member AS (
    SELECT owner AS granted, current_user::text AS name FROM names
    UNION ALL SELECT reader, client FROM names
    UNION ALL SELECT client, worker FROM names
),
schema_right AS (SELECT name, 'USAGE' AS word FROM role UNION ALL SELECT owner, 'CREATE' FROM names),
thing AS (
    SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS name, c.relname, pg_get_userbyid(c.relowner) AS owner
    FROM pg_class c, names n
    WHERE c.relnamespace = n.home::regnamespace AND starts_with(c.relname, 'flujo_') AND c.relkind IN ('r', 'p', 'v')
    UNION ALL SELECT 'FUNCTION', f.oid::regprocedure::text, f.proname, pg_get_userbyid(f.proowner) FROM pg_proc f, names n
    WHERE f.pronamespace = n.home::regnamespace AND starts_with(f.proname, 'flujo_')
),
listed AS (
    SELECT string_agg(name, ', ') AS readable, string_agg(name, ', ') FILTER (WHERE kind = 'TABLE' AND relname <> 'flujo_schema_version') AS writable
    FROM thing WHERE kind <> 'FUNCTION'
),
-- What the client's statements write, column by column: no more. A trigger bounds the columns of runs further.
client_right (relname, words) AS (
    VALUES ('flujo_pipelines', 'INSERT (fingerprint, reference, name, version, plan, hooked)'),
           ('flujo_runs', 'INSERT (id, fingerprint, reference, name, input, limits, tenant, queue, priority, idempotency_key, digest, metadata, trace_parent,
                           deadline_at, aros, settings, gates, key_marks, forked_from, from_step, root, parent_run, launched_with, retry_of, retries),
                           UPDATE (cancel_requested_at, reason, error, retried_as, replaced_by)'),
           ('flujo_scopes', 'INSERT (run_id, address, parent, kind, step, name, place, status, cursor, output, context, metadata, opened_at, closed_at)'),
           ('flujo_attempts', 'INSERT (key, run_id, address, step, number, kind, queue, status, available_at, output, metadata, latency_s, code, created_at,
                               started_at, ended_at), UPDATE (status, available_at, sends, sent_at)'),
           ('flujo_contexts', 'INSERT (run_id, place, context)'),
           ('flujo_blobs', 'INSERT (digest, body), UPDATE (touched_at)'),
           ('flujo_events', 'INSERT (run_id, attempt, name, level, data)'),
           ('flujo_inputs', 'INSERT (run_id, attempt, kind, address, step, actor, note, answer, name, digest)'),
           ('flujo_gates', 'INSERT (name), UPDATE (touched_at)'),
           ('flujo_gate_places', 'INSERT (gate, run_id, is_window, until)'),
           ('flujo_waiting_runs', 'INSERT (run_id, key, gate, flow, most, priority, not_before)'),
           ('flujo_context_fields', 'INSERT (model, digest, fields)'),
           ('flujo_model_guards', 'INSERT (guard, model, edits, cleared_at), UPDATE (edits, cleared_at, changed_at)'),
           ('flujo_schedules', 'INSERT (name, reference, fingerprint, body, timing, tenant, overlap, catch_up, slot_at, due_at),
                               UPDATE (reference, fingerprint, body, timing, tenant, overlap, catch_up, is_paused, slot_at, due_at, last_error,
                               failing_since, changed_at), DELETE')
),
step (place, text) AS (
    SELECT 1 + place, format('CREATE ROLE %I NOLOGIN', name) FROM role WHERE is_new
    UNION ALL SELECT 10, format('GRANT %I TO %I', m.granted, m.name) FROM member m
    WHERE CASE WHEN EXISTS (SELECT 1 FROM role r WHERE r.is_new AND r.name IN (m.granted, m.name)) THEN true
               ELSE NOT pg_has_role(m.name, m.granted, 'USAGE') END
    UNION ALL SELECT 11, format('GRANT %s ON SCHEMA %I TO %I', s.word, n.home, s.name) FROM schema_right s JOIN role r ON r.name = s.name, names n
    WHERE CASE WHEN r.is_new THEN true ELSE NOT has_schema_privilege(s.name, n.home, s.word) END
    UNION ALL SELECT 12, format('ALTER %s %s OWNER TO %I', t.kind, t.name, n.owner) FROM thing t, names n WHERE t.owner <> n.owner
    UNION ALL SELECT 13, format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I GRANT SELECT ON TABLES TO %I', owner, home, reader) FROM names
    UNION ALL
    SELECT 13, format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA %I GRANT INSERT, UPDATE, DELETE ON TABLES TO %I', owner, home, worker) FROM names
    UNION ALL SELECT 14, format('REVOKE ALL ON %s FROM %I, %I, %I', readable, reader, client, worker) FROM listed, names
    UNION ALL SELECT 15, format('GRANT SELECT ON %s TO %I', readable, reader) FROM listed, names
    UNION ALL SELECT 15, format('GRANT INSERT, UPDATE, DELETE ON %s TO %I', writable, worker) FROM listed, names
    UNION ALL SELECT 15, format('GRANT %s ON %s TO %I', r.words, t.name, n.client) FROM client_right r JOIN thing t ON t.relname = r.relname, names n
    UNION ALL
    -- Partitions can only be made by the owner: workers have it done.
    SELECT 16, format(act, t.name, n.home, n.worker) FROM thing t, names n, unnest(ARRAY[
        'ALTER FUNCTION %1$s SECURITY DEFINER SET search_path = %2$I, pg_temp', 'REVOKE ALL ON FUNCTION %1$s FROM PUBLIC', 'GRANT EXECUTE ON FUNCTION %1$s TO %3$I'
    ]) AS act
    WHERE t.relname = 'flujo_keep_event_partitions'
)
SELECT text FROM step ORDER BY place, text;
