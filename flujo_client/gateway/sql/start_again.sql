-- Start a background run that did not succeed again, as a new run with the same values except those given here. Nothing happens if it was started
-- again before: the new run's id is derived, and a run can be started again once. It is locked, so that it is not deleted at the same time.
WITH old AS (
    SELECT r.* FROM flujo_runs r
    WHERE r.id = %(run)s::text AND r.parent_run IS NOT NULL AND r.parent_address IS NULL AND r.status IN ('failed', 'cancelled', 'expired')
    FOR NO KEY UPDATE
),
new AS (
    INSERT INTO flujo_runs (id, fingerprint, reference, name, input, limits, tenant, queue, priority, digest, trace_parent, aros, settings, root,
                            parent_run, launched_with, retry_of, retries)
    SELECT %(new)s::text, o.fingerprint, o.reference, o.name, coalesce(%(input)s::bytea, o.input),
           o.limits || jsonb_build_object('run', %(new)s::text), o.tenant, o.queue, o.priority, coalesce(%(digest)s::text, o.digest),
           o.trace_parent, o.aros, o.settings, o.root, o.parent_run, %(context)s::bytea, o.id, o.retries + 1
    FROM old o ON CONFLICT DO NOTHING RETURNING id, reference, parent_run, root, input, launched_with, retry_of
),
marked AS (UPDATE flujo_runs o SET retried_as = new.id FROM new WHERE o.id = new.retry_of),
root AS (INSERT INTO flujo_scopes (run_id, address, output, context) SELECT id, root, input, launched_with FROM new),
work AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at)
    SELECT %(key)s::text, new.id, a.address, a.step, 1, a.kind, a.queue, now() + make_interval(secs => %(wait_s)s::float8)
    FROM new JOIN flujo_attempts a ON a.key = %(first)s::text
),
-- include blobs_of_new
story AS (
    INSERT INTO flujo_events (run_id, name, data)
    SELECT id, 'run.enqueued', jsonb_build_object('pipeline', reference, 'parent', parent_run, 'retry_of', retry_of) FROM new
    UNION ALL SELECT retry_of, 'background.started_again', jsonb_build_object('task_id', id, 'wait_seconds', %(wait_s)s::float8) FROM new
)
SELECT id FROM new;
