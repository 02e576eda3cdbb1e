    (SELECT fence FROM claimed) AS fence,
    coalesce((SELECT claim_id FROM claimed), a.claim_id)::text AS claim_id,
    a.status AS was, a.worker AS holder, a.fence AS standing_fence, a.losses - a.losses_alone AS in_company,
    %(room)s::text = 'shared' AND a.losses + a.suspicions + (a.status = 'running')::int >= %(suspect_after)s::int AND NOT (
        a.status = 'running' AND (
            a.losses_alone >= %(max_lost)s AND (a.worker IS NULL OR a.alone)
            OR EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = a.worker AND w.lease_until > now())
        )
    ) AS is_suspect,
    (SELECT w.lease_until > now() FROM flujo_workers w WHERE w.id = %(worker)s) AS leased,
    r.status AS run_status,
    CASE WHEN %(reference)s::text IS NOT NULL AND (r.reference, r.fingerprint) <> (%(reference)s::text, %(fingerprint)s::text)
        THEN r.reference END AS goes_by,
    r.cancel_requested_at IS NOT NULL OR coalesce(r.deadline_at <= now(), false) AS stopped,
    %(fan_outs)s::text[] IS NOT NULL AND EXISTS (
        SELECT 1 FROM flujo_scopes f WHERE f.run_id = a.run_id AND f.address = ANY(%(fan_outs)s::text[]) AND f.aborted
    ) AS aborted
