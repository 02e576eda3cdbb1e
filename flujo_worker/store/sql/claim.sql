-- Claim attempts: raise their fences. The result has only the claimed ones; refusal.sql reports why another one was not claimed. Alone, this
-- waits for locks. A group, all requests that came during the last such statement, takes only attempts that no worker has, and skips locked rows.
-- Lock first, then write: see conclude_many.sql. A claim locks its run only where it begins it.
WITH asked AS (
    SELECT unnest(%(key)s::text[]) AS key, unnest(%(worker)s::text[]) AS worker,
           unnest(%(reference)s::text[]) AS reference, unnest(%(fingerprint)s::text[]) AS fingerprint
),
held AS (
    SELECT q.key, q.worker, a.run_id, a.run_status FROM asked q
    CROSS JOIN LATERAL (
        SELECT a.run_id, (
            SELECT r.status FROM flujo_runs r
            WHERE r.id = a.run_id AND (q.reference IS NULL OR (r.reference, r.fingerprint) = (q.reference, q.fingerprint)) AND
-- include open_run
        ) AS run_status
        FROM flujo_attempts a
        WHERE a.key = q.key AND (SELECT w.lease_until > now() FROM flujo_workers w WHERE w.id = q.worker)
          AND (%(room)s::text <> 'shared' OR a.losses + a.suspicions + (a.status = 'running')::int < %(suspect_after)s::int)
          AND ((a.status IN ('ready', 'queued') AND a.available_at < now() + interval '100 years') OR (  -- not held for a lane or at a gate
              a.status = 'running' AND %(may_judge)s::bool
              AND (a.losses_alone < %(max_lost)s::int OR (a.worker IS NOT NULL AND NOT a.alone))
              AND (SELECT w.lease_until > now() FROM flujo_workers w WHERE w.id = a.worker) IS NOT TRUE
          ))
        FOR NO KEY UPDATE SKIP LOCKED -- in a group
    ) a
    WHERE a.run_status IS NOT NULL
),
queued AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.id = ANY(ARRAY(SELECT run_id FROM held WHERE run_status = 'queued')) AND r.ended_at IS NULL AND r.status NOT IN ('running', 'parked')
    FOR NO KEY UPDATE SKIP LOCKED -- in a group
),
claimed AS (
    UPDATE flujo_attempts a
    SET status = 'running', fence = a.fence + 1, claim_id = gen_random_uuid(), losses = a.losses + (a.status = 'running')::int,
        losses_alone = a.losses_alone + (a.status = 'running' AND (a.worker IS NULL OR a.alone))::int,
        loss = CASE WHEN a.status = 'running' THEN
-- include latest_loss
        ELSE a.loss END,
        alone = %(room)s::text = 'alone', room = nullif(%(room)s::text, 'shared'), worker = h.worker, started_at = now()
    FROM held h
    WHERE a.key = h.key AND a.key = ANY(%(key)s::text[]) AND (h.run_status = 'running' OR h.run_id = ANY(ARRAY(SELECT id FROM queued)))
    RETURNING a.key, a.fence, a.run_id, a.claim_id
),
begun AS (UPDATE flujo_runs r SET status = 'running', started_at = now() FROM queued q WHERE r.id = q.id AND r.id = ANY(ARRAY(SELECT id FROM queued)))
SELECT c.key, c.fence, c.claim_id::text, EXISTS (
    SELECT 1 FROM (SELECT unnest(%(fan_out_of)s::text[]) AS of, unnest(%(fan_out_address)s::text[]) AS address) f
    WHERE f.of = c.key AND (SELECT s.aborted FROM flujo_scopes s WHERE s.run_id = c.run_id AND s.address = f.address)
) AS aborted
FROM claimed c;
