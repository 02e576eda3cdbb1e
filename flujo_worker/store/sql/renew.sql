-- Renew the lease and look which attempts are still this worker's to work on, in one statement: those whose fan-out was aborted are
-- not. No row: the lease is over.
WITH mine AS (
    UPDATE flujo_workers SET lease_until = now() + make_interval(secs => %(lease_s)s)
    WHERE id = %(id)s AND lease_until > now() AND ended_at IS NULL
    RETURNING id, stop_requested_at
)
SELECT
    mine.id, mine.stop_requested_at IS NOT NULL AS is_to_stop,
    array(
        SELECT k.key FROM unnest(%(keys)s::text[], %(fences)s::int[]) AS k (key, fence)
        WHERE NOT EXISTS (
            SELECT 1 FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
            WHERE a.key = k.key AND a.fence = k.fence AND a.status = 'running' AND a.worker = %(id)s
              AND r.cancel_requested_at IS NULL
              AND NOT EXISTS (
                  SELECT 1 FROM flujo_scopes f
                  WHERE f.run_id = a.run_id AND f.aborted
                    AND (starts_with(a.address, f.address || '/') OR starts_with(a.address, f.address || '#'))
              )
        )
    ) AS lost
FROM mine;
