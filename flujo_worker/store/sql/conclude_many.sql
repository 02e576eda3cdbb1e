-- The merges of ordinary steps, or of steps that close their branch, whose outcomes arrived during the previous such statement. Each has the
-- guarantees of conclude.sql. Lock first, then write. Each decision gets the lock of its attempt, then of its scope, then of its run, or is left out
-- without an answer: conclude.sql reports why, and waits for locks where this one skips them. So a group never waits, cannot be part of a deadlock,
-- and no decision undoes another one. A decision with all its locks is written without further checks. A run that ends is locked as an UPDATE locks
-- it. If another decision of the group belongs to the same run, that one is left out. Rows are looked up by key, one by one: see group_settings.sql.
WITH decision AS MATERIALIZED (
    SELECT unnest(%(place)s::int[]) AS place, unnest(%(close_key)s::text[]) AS key, unnest(%(close_run)s::text[]) AS run, unnest(%(close_fence)s::int[]) AS fence, unnest(%(close_claim_id)s::uuid[]) AS claim_id,
           unnest(%(close_status)s::text[]) AS status, unnest(%(close_reason)s::text[]) AS reason, unnest(%(close_result)s::bytea[]) AS result,
           unnest(%(close_error)s::text[]) AS error, unnest(%(close_metadata)s::text[]) AS metadata, unnest(%(close_latency_s)s::float8[]) AS latency_s,
           unnest(%(close_code)s::text[]) AS code, unnest(%(close_input)s::bytea[]) AS input, unnest(%(close_answer)s::text[]) AS answer,
           unnest(%(move_address)s::text[]) AS address, unnest(%(move_seen)s::int[]) AS seen, unnest(%(move_cursor)s::int[]) AS cursor,
           unnest(%(move_status)s::text[]) AS scope_status, unnest(%(move_merges)s::int[]) AS merges, unnest(%(move_output)s::bytea[]) AS output,
           unnest(%(move_context)s::bytea[]) AS context, unnest(%(move_drops)s::bool[]) AS drops, unnest(%(move_patch)s::bytea[]) AS patch,
           unnest(%(move_error)s::text[]) AS scope_error, unnest(%(move_metadata)s::text[]) AS scope_metadata
),
attempt AS (
    SELECT d.place FROM decision d
    CROSS JOIN LATERAL (
        SELECT FROM flujo_attempts a
        WHERE a.key = d.key AND a.status = 'running' AND a.fence = d.fence AND (d.claim_id IS NULL OR a.claim_id = d.claim_id)
        FOR NO KEY UPDATE SKIP LOCKED
    ) a
    WHERE NOT d.place = ANY(ARRAY(  -- where a sibling waits for the lane, conclude.sql gives it that
        SELECT l.of FROM (SELECT unnest(%(lane_of)s::int[]) AS of, unnest(%(lane_run)s::text[]) AS run, unnest(%(lane_fan_out)s::text[]) AS fan_out) l
        WHERE (SELECT true FROM flujo_scopes h WHERE h.run_id = l.run AND h.parent = l.fan_out AND h.held AND h.status = 'open' LIMIT 1)
    )) AND NOT d.place = ANY(ARRAY(  -- where a stored value is gone, conclude.sql says so
        SELECT v.of FROM (SELECT unnest(%(stored_of)s::int[]) AS of, unnest(%(stored_digest)s::text[]) AS digest) v
        WHERE (SELECT true FROM flujo_blobs b WHERE b.digest = v.digest) IS NULL
    ))
),
scope AS (
    SELECT d.place, d.run FROM decision d
    CROSS JOIN LATERAL (
        SELECT FROM flujo_scopes s
        WHERE s.run_id = d.run AND s.address = d.address AND s.status = 'open' AND s.version = d.seen FOR NO KEY UPDATE SKIP LOCKED
    ) s
    WHERE d.place = ANY(ARRAY(SELECT place FROM attempt))
),
ending AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.id = ANY(ARRAY(SELECT run FROM scope WHERE place = ANY(%(run_of)s::int[])))
      AND r.ended_at IS NULL AND r.status <> 'queued' AND r.cancel_requested_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
),
lasting AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.id = ANY(ARRAY(SELECT run FROM scope)) AND NOT r.id = ANY(ARRAY(SELECT id FROM ending))
      AND r.ended_at IS NULL AND r.status <> 'queued' AND r.cancel_requested_at IS NULL
    FOR KEY SHARE SKIP LOCKED
),
held AS MATERIALIZED (
    SELECT d.* FROM decision d
    WHERE d.place = ANY(ARRAY(SELECT place FROM scope))
      AND CASE WHEN d.place = ANY(%(run_of)s::int[]) THEN d.run = ANY(ARRAY(SELECT id FROM ending)) ELSE d.run = ANY(ARRAY(SELECT id FROM lasting)) END
),
merged AS (
    UPDATE flujo_attempts a
    SET status = h.status, reason = h.reason, output = h.result, error = h.error::jsonb, metadata = h.metadata::jsonb,
        latency_s = h.latency_s, code = h.code, input = h.input, answer = h.answer, ended_at = now()
    FROM held h WHERE a.key = h.key AND a.key = ANY(%(close_key)s::text[]) RETURNING h.place, h.run, h.key, h.fence, h.claim_id
),
moved AS (
    UPDATE flujo_scopes s
    SET cursor = h.cursor, status = h.scope_status, version = s.version + h.merges, output = coalesce(h.output, s.output),
        context = CASE WHEN NOT h.drops THEN coalesce(h.context, s.context) END, patch = coalesce(h.patch, s.patch),
        error = coalesce(h.scope_error::jsonb, s.error), metadata = s.metadata || h.scope_metadata::jsonb,
        closed_by = CASE WHEN h.scope_status <> 'open' THEN h.key END, closed_at = CASE WHEN h.scope_status <> 'open' THEN now() END
    FROM held h
    WHERE s.run_id = h.run AND s.address = h.address AND s.run_id = ANY(%(close_run)s::text[]) AND s.address = ANY(%(move_address)s::text[])
),
next AS (
-- include next_attempts
),
begun AS (
-- include checkpoints
),
story AS (
-- include story
),
spent AS (
-- include spend
),
ended AS (
-- include end_of_run
)
SELECT m.place, (SELECT n.claim_id::text FROM next n WHERE n.key = (%(ahead)s::text[])[m.place]) FROM merged m;
