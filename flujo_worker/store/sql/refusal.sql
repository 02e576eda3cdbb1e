-- Why an attempt was not claimed; or, if the answer to its claim was lost, the fence of the caller's claim.
SELECT
    a.claim_id::text, a.status AS was, a.worker AS holder, a.fence, a.losses - a.losses_alone AS in_company,
    %(room)s::text = 'shared' AND a.losses + a.suspicions + (a.status = 'running')::int >= %(suspect_after)s::int AND NOT (
        a.status = 'running' AND (
            a.losses_alone >= %(max_lost)s::int AND (a.worker IS NULL OR a.alone)
            OR EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = a.worker AND w.lease_until > now())
        )
    ) AS is_suspect,
    (SELECT w.lease_until > now() FROM flujo_workers w WHERE w.id = %(worker)s::text) AS leased, r.status AS run_status,
    CASE WHEN (r.reference, r.fingerprint) <> (%(reference)s::text, %(fingerprint)s::text) THEN r.reference END AS goes_by,
    r.cancel_requested_at IS NOT NULL OR coalesce(r.deadline_at <= now(), false) AS stopped,
    EXISTS (SELECT 1 FROM flujo_scopes f WHERE f.run_id = a.run_id AND f.address = ANY(%(fan_outs)s::text[]) AND f.aborted) AS aborted
FROM flujo_attempts a LEFT JOIN flujo_runs r ON r.id = a.run_id WHERE a.key = %(key)s::text;
