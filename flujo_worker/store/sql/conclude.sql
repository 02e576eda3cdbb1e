-- The merge of one decision: the attempt's end, the moves of its scope and of those above it, new scopes, what comes next, a branch that closes, a
-- child run, the events and the run's end, or nothing at all. Ordinary steps go through conclude_many.sql where they can. Each part checks that the
-- one before took effect, all of it or nothing, which also ensures this order. Every row is named by parameters, even if a join would do: a plan made
-- for small runs must serve one of ten thousand scopes. A late outcome changes nothing here; its spend is booked after it. FOR KEY SHARE meets the
-- canceller's FOR UPDATE: once a cancel has committed, no merge can (ADR 15). An attempt that closes without its scopes and run following is an error
-- that undoes the statement: flujo_undo() raises it. The commit notifies only those who wait for the run's end: a commit that notifies holds a lock
-- of the whole database (ADR 28).
--
-- Locks in the one order: attempt → own scope → those above it, deepest first (a parent's address is always shorter; the arrays come in that order,
-- and ORDER BY keeps it) → the fan-out that is aborted, which is above them all → run. The sibling that takes the lane is locked after these, and can
-- close no circle: one that is locked is skipped, so this never waits. If all that wait are locked, none gets the lane here; idle_lanes.sql finds it.
-- An attempt ends as cancelled only where a fan-out around it is aborted: a failover may have lost an abort that its worker has read. Where a failover has lost a value that was stored for it, nothing is merged, and `merged` is NULL.
WITH unstored AS (
    SELECT 1 FROM unnest(%(stored_digest)s::text[]) AS v (digest) WHERE (SELECT true FROM flujo_blobs b WHERE b.digest = v.digest) IS NULL
),
won AS (
    UPDATE flujo_attempts
    SET status = %(status)s::text, reason = %(reason)s::text, output = %(result)s::bytea, error = %(error)s::jsonb, metadata = %(metadata)s::jsonb,
        latency_s = %(latency_s)s::float8, answers = %(answers)s::jsonb, code = %(code)s::text, input = %(input)s::bytea, answer = %(answer)s::text, ended_at = now()
    WHERE key = %(key)s::text AND status = 'running' AND fence = %(fence)s::int AND (%(claim_id)s::uuid IS NULL OR claim_id = %(claim_id)s::uuid)
      AND NOT EXISTS (SELECT 1 FROM unstored)
      AND (%(status)s::text <> 'cancelled' OR EXISTS (SELECT 1 FROM flujo_scopes f WHERE f.run_id = %(run)s::text AND f.address = ANY(%(around)s::text[]) AND f.aborted))
    RETURNING 1
),
held AS (
    SELECT m.* FROM flujo_scopes s
    JOIN unnest(
        %(move_address)s::text[], %(move_seen)s::int[], %(move_cursor)s::int[], %(move_status)s::text[], %(move_merges)s::int[],
        %(move_output)s::bytea[], %(move_context)s::bytea[], %(move_drops)s::bool[], %(move_patch)s::bytea[], %(move_error)s::text[],
        %(move_metadata)s::text[]
    ) WITH ORDINALITY AS m (address, seen, cursor, status, merges, output, context, drops, patch, error, metadata, place) USING (address)
    WHERE s.run_id = %(run)s::text AND s.address = ANY(%(move_address)s::text[]) AND s.status = 'open' AND s.version = m.seen
      AND EXISTS (SELECT 1 FROM won)
    ORDER BY m.place FOR UPDATE OF s
),
moved AS (
    UPDATE flujo_scopes s
    SET cursor = h.cursor, status = h.status, version = s.version + h.merges, output = coalesce(h.output, s.output),
        context = CASE WHEN NOT h.drops THEN coalesce(h.context, s.context) END, patch = coalesce(h.patch, s.patch),
        error = coalesce(h.error::jsonb, s.error), metadata = s.metadata || h.metadata::jsonb,
        closed_by = CASE WHEN h.status <> 'open' THEN %(key)s::text END, closed_at = CASE WHEN h.status <> 'open' THEN now() END
    FROM held h WHERE s.run_id = %(run)s::text AND s.address = ANY(%(move_address)s::text[]) AND s.address = h.address RETURNING 1
),
whole AS (SELECT 1 WHERE (SELECT count(*) FROM moved) = cardinality(%(move_address)s::text[])),
aborted AS (
    UPDATE flujo_scopes SET aborted = true
    WHERE run_id = %(run)s::text AND address = %(fan_out)s::text AND %(aborts)s::bool AND NOT aborted AND EXISTS (SELECT 1 FROM whole) RETURNING 1
),
live AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.id = %(run)s::text AND r.ended_at IS NULL AND r.status <> 'queued' AND r.cancel_requested_at IS NULL
      AND EXISTS (SELECT 1 FROM whole) AND (SELECT count(*) FROM aborted) >= 0
    FOR KEY SHARE OF r
),
opened AS (
    INSERT INTO flujo_scopes (run_id, address, parent, kind, step, name, place, output, context, lanes, cursor, version, status, waiting, held,
                              error, metadata, closed_by, closed_at)
    SELECT live.id, o.address, o.parent, o.kind, o.step, o.name, o.place, o.output, o.context, o.lanes::jsonb, o.cursor, o.version, o.status, o.waiting, o.held,
           o.error::jsonb, o.metadata::jsonb, CASE WHEN o.status <> 'open' THEN %(key)s::text END, CASE WHEN o.status <> 'open' THEN now() END
    FROM live, unnest(
        %(open_address)s::text[], %(open_parent)s::text[], %(open_kind)s::text[], %(open_step)s::text[], %(open_name)s::text[],
        %(open_place)s::int[], %(open_output)s::bytea[], %(open_context)s::bytea[], %(open_lanes)s::text[], %(open_cursor)s::int[], %(open_version)s::int[],
        %(open_status)s::text[], %(open_waiting)s::bool[], %(open_held)s::bool[], %(open_error)s::text[], %(open_metadata)s::text[]
    ) AS o (address, parent, kind, step, name, place, output, context, lanes, cursor, version, status, waiting, held, error, metadata)
),
merged AS (SELECT 1 AS place, live.id AS run, %(key)s::text AS key, %(fence)s::int AS fence, %(claim_id)s::uuid AS claim_id FROM live),
next AS (
-- include next_attempts
),
begun AS (
-- include checkpoints
),
child AS (
    INSERT INTO flujo_runs (id, fingerprint, reference, name, input, tenant, queue, priority, digest, trace_parent, deadline_at, aros, settings, limits,
                            root, parent_run, parent_address, launched_with)
    SELECT %(child_run)s::text, r.fingerprint, r.reference, %(child_name)s::text, %(child_input)s::bytea, r.tenant, r.queue, r.priority,
           %(child_digest)s::text, %(child_trace_parent)s::text, to_timestamp(%(child_deadline)s::float8), r.aros, r.settings, %(child_limits)s::jsonb,
           %(child_root)s::text, r.id, %(child_at)s::text, CASE WHEN %(child_at)s::text IS NULL THEN %(child_context)s::bytea END
    FROM live JOIN flujo_runs r ON r.id = live.id WHERE %(child_run)s::text IS NOT NULL RETURNING id, reference, parent_run
),
child_scope AS (
    INSERT INTO flujo_scopes (run_id, address, output, context, version)
    SELECT id, %(child_root)s::text, %(child_input)s::bytea, %(child_context)s::bytea, %(child_version)s::int FROM child
),
child_work AS (
    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at)
    SELECT %(child_key)s::text, id, %(child_root)s::text, %(child_step)s::text, 1, %(child_kind)s::text, %(child_queue)s::text,
           now() + make_interval(secs => %(child_after_s)s::float8)
    FROM child
),
child_story AS (
    INSERT INTO flujo_events (run_id, name, data)
    SELECT id, 'run.enqueued', jsonb_build_object('pipeline', reference, 'parent', parent_run) FROM child
),
giving AS (SELECT 1 FROM live WHERE %(takes)s::bool),
-- include next_in_lane
story AS (
-- include story
),
spent AS (
-- include spend
),
ending AS (SELECT id FROM live),
ended AS (
-- include end_of_run
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM unstored) THEN NULL WHEN NOT EXISTS (SELECT 1 FROM won) THEN false WHEN EXISTS (SELECT 1 FROM live) THEN true ELSE flujo_undo() END AS merged,
       (SELECT key FROM taken) AS taken, (SELECT claim_id::text FROM next WHERE claim_id IS NOT NULL) AS claim_id;
