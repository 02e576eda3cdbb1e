-- Renew the lease and find the attempts that this worker has lost, in one statement; those of aborted fan-outs are among
-- them. Also count the live workers that consume one of its queues. No row: the lease is over.
WITH mine AS (
    UPDATE flujo_workers SET lease_until = now() + make_interval(secs => %(lease_s)s)
    WHERE id = %(id)s AND lease_until > now() AND ended_at IS NULL RETURNING id, stop_requested_at, queues
)
SELECT
    mine.id, mine.stop_requested_at IS NOT NULL AS is_to_stop,
    array(
-- include lost_among
    ) AS lost,
    (SELECT count(*) FROM flujo_workers w WHERE w.ended_at IS NULL AND w.lease_until > now() AND coalesce(w.queues && mine.queues, true)) AS sharing
FROM mine;
