-- A run, its root scope and its first attempt, in one commit; nothing when its id or its idempotency key is taken.
WITH definition AS (
    INSERT INTO flujo_pipelines (fingerprint, reference, name, version, plan, hooked)
    VALUES (%(fingerprint)s::text, %(reference)s::text, %(name)s::text, %(version)s::text, %(plan)s::jsonb, %(hooked)s::bool)
    ON CONFLICT DO NOTHING
),
new AS (
    INSERT INTO flujo_runs (id, fingerprint, reference, name, input, limits, tenant, queue, priority, idempotency_key, digest,
                            metadata, trace_parent, deadline_at, aros, settings, gates, key_marks)
    VALUES (%(run)s::text, %(fingerprint)s::text, %(reference)s::text, %(name)s::text, %(input)s::bytea, %(limits)s::jsonb,
            %(tenant)s::text, %(run_queue)s::text, %(priority)s::smallint, %(idempotency_key)s::text, %(digest)s::text,
            %(metadata)s::jsonb, %(trace_parent)s::text, to_timestamp(%(deadline)s::float8), %(aros)s::jsonb, %(settings)s::jsonb, %(gates)s::jsonb,
            %(key_marks)s::text[])
    ON CONFLICT DO NOTHING
    RETURNING id
),
root AS (
    INSERT INTO flujo_scopes (run_id, address, output, context)
    SELECT id, %(address)s::text, %(input)s::bytea, %(context)s::bytea FROM new
),
begun AS (
    INSERT INTO flujo_contexts (run_id, place, context) SELECT id, 0, %(context)s::bytea FROM new
),
work AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at)
    SELECT %(key)s::text, id, %(address)s::text, %(step)s::text, 1, %(kind)s::text, %(queue)s::text,
           now() + make_interval(secs => %(grace_s)s::float8)
    FROM new
),
large AS (
    INSERT INTO flujo_blobs (digest, body)
    SELECT b.digest, b.body FROM new, unnest(%(blob_digests)s::text[], %(blob_bodies)s::bytea[]) AS b (digest, body)
    ON CONFLICT (digest) DO UPDATE SET touched_at = now()
),
story AS (
    INSERT INTO flujo_events (run_id, name, data)
    SELECT id, 'run.enqueued', jsonb_build_object('pipeline', %(reference)s::text) FROM new
)
SELECT id FROM new;
