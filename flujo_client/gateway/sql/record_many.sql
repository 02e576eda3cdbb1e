-- Runs of one pipeline, each with its root scope and its first attempt, in one commit, as record.sql does it for one. Of a run whose idempotency key
-- is taken nothing is recorded, and the row that has the key is returned instead: writing a column over itself finds the current row, also where it
-- was committed after this statement began. Keys are inserted in one order, so that no two statements wait for each other.
WITH
-- include definition
given AS (
    SELECT * FROM unnest(
        %(run)b::text[], %(input)b::bytea[], %(context)b::bytea[], %(limits)b::text[], %(tenant)b::text[], %(run_queue)b::text[],
        %(queue)b::text[], %(priority)b::int[], %(idempotency_key)b::text[], %(digest)b::text[], %(metadata)b::text[],
        %(trace_parent)b::text[], %(deadline)b::float8[], %(key)b::text[], %(gates)b::text[]
    ) AS g (run, input, context, limits, tenant, run_queue, queue, priority, idempotency_key, digest, metadata, trace_parent, deadline, key, gates)
),
kept AS (
    INSERT INTO flujo_runs (id, fingerprint, reference, name, input, limits, tenant, queue, priority, idempotency_key, digest,
                            metadata, trace_parent, deadline_at, aros, settings, gates, key_marks)
    SELECT g.run, %(fingerprint)s::text, %(reference)s::text, %(name)s::text, g.input, g.limits::jsonb, g.tenant, g.run_queue,
           g.priority::smallint, g.idempotency_key, g.digest, g.metadata::jsonb, g.trace_parent, to_timestamp(g.deadline), %(aros)s::jsonb, %(settings)s::jsonb, g.gates::jsonb,
           %(key_marks)s::text[]
    FROM given g ORDER BY g.tenant, g.idempotency_key, g.run ON CONFLICT (tenant, idempotency_key) DO UPDATE SET retried_as = flujo_runs.retried_as
    RETURNING id, tenant, idempotency_key, digest
),
new AS (SELECT g.* FROM given g JOIN kept ON kept.id = g.run),
-- include beginnings
SELECT id, tenant, idempotency_key, digest FROM kept WHERE idempotency_key IS NOT NULL;
