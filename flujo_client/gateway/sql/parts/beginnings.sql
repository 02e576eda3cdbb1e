-- What each `new` run begins with: its root scope, its first attempt, its large values and its first event.
root AS (INSERT INTO flujo_scopes (run_id, address, output, context) SELECT run, %(address)s::text, input, context FROM new),
begun AS (INSERT INTO flujo_contexts (run_id, place, context) SELECT run, 0, context FROM new),
work AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at)
    SELECT key, run, %(address)s::text, %(step)s::text, 1, %(kind)s::text, queue, now() + make_interval(secs => %(grace_s)s::float8) FROM new
),
-- include blobs_of_new
story AS (INSERT INTO flujo_events (run_id, name, data) SELECT run, 'run.enqueued', jsonb_build_object('pipeline', %(reference)s::text) FROM new)
