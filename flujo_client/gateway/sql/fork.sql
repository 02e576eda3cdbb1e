-- A run that begins again at a step of another one, in one commit; nothing when its idempotency key is taken, or the other run is live, gone, or was
-- retried before (unless `again`): of two retries the second waits for its row and sees the first. The outputs of the steps before are copied as they
-- were: closed rows without a spend, so nothing is charged again. Rows inside their containers stay with the other run. Contexts are copied too, so
-- that a fork can be forked before its own beginning. A fork begins under another plan, and the other run may be live.
WITH old AS (
    SELECT id, reference, name, input FROM flujo_runs
    WHERE id = %(forked_from)s::text AND (ended_at IS NOT NULL OR %(of_live)s::bool) AND (retried_as IS NULL OR %(again)s::bool) FOR NO KEY UPDATE
),
definition AS (
    INSERT INTO flujo_pipelines (fingerprint, reference, name, version, plan, hooked)
    SELECT %(fingerprint)s::text, old.reference, %(name)s::text, %(version)s::text, %(plan)s::jsonb, %(hooked)s::bool FROM old ON CONFLICT DO NOTHING
),
new AS (
    INSERT INTO flujo_runs (id, fingerprint, reference, name, input, limits, tenant, queue, priority, idempotency_key, digest, metadata,
                            trace_parent, deadline_at, aros, settings, gates, forked_from, from_step)
    SELECT %(run)s::text, %(fingerprint)s::text, old.reference, old.name, old.input, %(limits)s::jsonb, %(tenant)s::text, %(run_queue)s::text,
           %(priority)s::smallint, %(idempotency_key)s::text, %(digest)s::text, %(metadata)s::jsonb, %(trace_parent)s::text,
           to_timestamp(%(deadline)s::float8), %(aros)s::jsonb, %(settings)s::jsonb, %(gates)s::jsonb, old.id, %(step)s::text
    FROM old ON CONFLICT (tenant, idempotency_key) DO NOTHING RETURNING id, reference, forked_from
),
marked AS (UPDATE flujo_runs o SET retried_as = new.id FROM new WHERE o.id = new.forked_from AND o.ended_at IS NOT NULL),
root AS (
    INSERT INTO flujo_scopes (run_id, address, cursor, output, context)
    SELECT id, %(address)s::text, %(place)s::int, %(input)s::bytea, %(context)s::bytea FROM new
),
work AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at)
    SELECT %(key)s::text, id, %(address)s::text, %(step)s::text, 1, %(kind)s::text, %(queue)s::text,
           now() + make_interval(secs => %(grace_s)s::float8)
    FROM new
),
taken_steps AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, status, available_at, output, metadata, latency_s,
                                code, created_at, started_at, ended_at)
    SELECT new.id || substr(a.key, length(a.run_id) + 1), new.id, a.address, a.step, a.number, a.kind, a.queue, a.status, a.available_at,
           a.output, jsonb_build_object('taken_over_from', new.forked_from) || coalesce(a.metadata, '{}'), a.latency_s,
           a.code, a.created_at, a.started_at, a.ended_at
    FROM new JOIN flujo_attempts a ON a.run_id = new.forked_from
    WHERE a.address = '' AND a.status = 'succeeded' AND a.kind IN ('step', 'resume') AND a.step = ANY(%(taken)s::text[])
),
taken_containers AS (
    INSERT INTO flujo_scopes (run_id, address, parent, kind, step, name, place, status, cursor, output, metadata, opened_at, closed_at)
    SELECT new.id, s.address, s.parent, s.kind, s.step, s.name, s.place, s.status, s.cursor, s.output,
           jsonb_build_object('taken_over_from', new.forked_from) || s.metadata, s.opened_at, s.closed_at
    FROM new JOIN flujo_scopes s ON s.run_id = new.forked_from
    WHERE s.parent = '' AND s.status = 'succeeded' AND s.step = ANY(%(taken)s::text[])
),
begun AS (
    INSERT INTO flujo_contexts (run_id, place, context)
    SELECT new.id, c.place, c.context FROM new JOIN flujo_contexts c ON c.run_id = new.forked_from WHERE c.place < %(keeps)s::int
    UNION ALL SELECT id, %(place)s::int, %(context)s::bytea FROM new
),
-- include blobs_of_new
asked AS (
    INSERT INTO flujo_inputs (run_id, kind, step, actor, note)
    SELECT forked_from, CASE WHEN %(of_live)s::bool THEN 'fork' ELSE 'retry' END, %(step)s::text, %(actor)s::text, id FROM new
),
story AS (
    INSERT INTO flujo_events (run_id, name, data)
    SELECT e.run_id, e.name, e.data FROM new, LATERAL (VALUES
        (1, new.id, 'run.enqueued', jsonb_build_object('pipeline', new.reference)),
        (2, new.id, 'run.forked', jsonb_build_object('from_run', new.forked_from, 'from_step', %(step)s::text)),
        (3, new.forked_from, 'run.forked', jsonb_build_object('to_run', new.id, 'from_step', %(step)s::text))
    ) AS e (place, run_id, name, data) ORDER BY e.place
)
SELECT id FROM new;
