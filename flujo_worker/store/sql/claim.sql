-- Take an attempt: raise its fence, or say why not. One statement, answered either way.
-- A suspect may still look like running under a dead worker: its sweep has published it and is about to commit that.
WITH claimed AS (
    UPDATE flujo_attempts a
    SET status = 'running', fence = a.fence + 1, losses = a.losses + (a.status = 'running')::int,
        losses_alone = a.losses_alone + (a.status = 'running' AND (a.worker IS NULL OR a.alone))::int,
        alone = %(room)s::text = 'alone', worker = %(worker)s, started_at = now()
    WHERE a.key = %(key)s
      AND (%(room)s::text <> 'shared' OR a.losses + (a.status = 'running')::int < %(suspect_after)s::int)
      AND EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = %(worker)s AND w.lease_until > now())
      AND EXISTS (
          SELECT 1 FROM flujo_runs r
          WHERE r.id = a.run_id AND r.status IN ('queued', 'running') AND r.cancel_requested_at IS NULL
            AND (r.deadline_at IS NULL OR r.deadline_at > now())
            AND (%(reference)s::text IS NULL OR (r.reference, r.fingerprint) = (%(reference)s::text, %(fingerprint)s::text))
      )
      AND (
          a.status IN ('ready', 'queued')
          OR (
              a.status = 'running' AND %(may_judge)s::bool
              AND (a.losses_alone < %(max_lost)s OR (a.worker IS NOT NULL AND NOT a.alone))
              AND NOT EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = a.worker AND w.lease_until > now())
          )
      )
    RETURNING a.fence, a.run_id
),
begun AS (
    UPDATE flujo_runs r SET status = 'running', started_at = now()
    WHERE r.id = (SELECT run_id FROM claimed) AND r.status = 'queued'
)
SELECT
    (SELECT fence FROM claimed) AS fence,
    a.status AS was, a.worker AS holder, a.fence AS standing_fence, a.losses - a.losses_alone AS in_company,
    %(room)s::text = 'shared' AND a.losses + (a.status = 'running')::int >= %(suspect_after)s::int AND NOT (
        a.status = 'running' AND (
            a.losses_alone >= %(max_lost)s AND (a.worker IS NULL OR a.alone)
            OR EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = a.worker AND w.lease_until > now())
        )
    ) AS is_suspect,
    (SELECT w.lease_until > now() FROM flujo_workers w WHERE w.id = %(worker)s) AS leased,
    r.status AS run_status,
    %(reference)s::text IS NOT NULL AND (r.reference, r.fingerprint) <> (%(reference)s::text, %(fingerprint)s::text) AS mismatched,
    r.cancel_requested_at IS NOT NULL OR coalesce(r.deadline_at <= now(), false) AS stopped,
    %(fan_outs)s::text[] IS NOT NULL AND EXISTS (
        SELECT 1 FROM flujo_scopes f WHERE f.run_id = a.run_id AND f.address = ANY(%(fan_outs)s::text[]) AND f.aborted
    ) AS aborted
FROM flujo_attempts a LEFT JOIN flujo_runs r ON r.id = a.run_id
WHERE a.key = %(key)s;
