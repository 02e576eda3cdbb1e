    UPDATE flujo_attempts a
    SET status = 'running', fence = a.fence + 1, claim_id = gen_random_uuid(), losses = a.losses + (a.status = 'running')::int,
        losses_alone = a.losses_alone + (a.status = 'running' AND (a.worker IS NULL OR a.alone))::int,
        alone = %(room)s::text = 'alone', worker = %(worker)s, started_at = now()
    WHERE a.key = %(key)s
      AND (%(room)s::text <> 'shared' OR a.losses + a.suspicions + (a.status = 'running')::int < %(suspect_after)s::int)
      AND EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = %(worker)s AND w.lease_until > now())
      AND EXISTS (
          SELECT 1 FROM flujo_runs r
          WHERE r.id = a.run_id AND
-- include open_run
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
    RETURNING a.fence, a.run_id, a.claim_id
