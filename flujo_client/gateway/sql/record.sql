-- A run, its root scope and its first attempt, in one commit; nothing when its id or its idempotency key is taken.
WITH
-- include definition
new AS (
    INSERT INTO flujo_runs (id, fingerprint, reference, name, input, limits, tenant, queue, priority, idempotency_key, digest,
                            metadata, trace_parent, deadline_at, aros, settings, gates, key_marks)
    VALUES (%(run)s::text, %(fingerprint)s::text, %(reference)s::text, %(name)s::text, %(input)s::bytea, %(limits)s::jsonb,
            %(tenant)s::text, %(run_queue)s::text, %(priority)s::smallint, %(idempotency_key)s::text, %(digest)s::text,
            %(metadata)s::jsonb, %(trace_parent)s::text, to_timestamp(%(deadline)s::float8), %(aros)s::jsonb, %(settings)s::jsonb, %(gates)s::jsonb,
            %(key_marks)s::text[])
    ON CONFLICT DO NOTHING
    RETURNING id AS run, %(input)s::bytea AS input, %(context)s::bytea AS context, %(key)s::text AS key, %(queue)s::text AS queue
),
-- include beginnings
SELECT run AS id FROM new;
