-- Rows to publish, marked in the transaction that sends them: a crash in between only sends them twice. No count may overflow, because one
-- damaged row must not block all others.
--   ready   due by its own clock: a tail that died, a backoff, a timer
--   lost    its worker's lease is over, and the judge's is not; poisoned.sql handles poison
--   epoch   sent before the broker's present epoch began: Redis was wiped
--   gone    never claimed for 3 s · 2^(sends-1), and its queue is empty or has a younger head; sends are counted from the last loss
WITH due AS (
    SELECT a.key,
        CASE a.status WHEN 'ready' THEN 'ready' WHEN 'running' THEN 'lost'
            ELSE CASE WHEN a.sent_at < to_timestamp(%(epoch_start)s) THEN 'epoch' ELSE 'gone' END END AS why
    FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
    WHERE a.ended_at IS NULL AND a.available_at >= (SELECT live_since FROM flujo_sweeps) AND a.available_at < now() + interval '100 years'
      AND r.ended_at IS NULL AND r.status <> 'parked' AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now())
      AND (
        (a.status = 'ready' AND a.available_at <= now())
        OR (
            a.status = 'running' AND (SELECT j.lease_until > now() FROM flujo_workers j WHERE j.id = %(judge)s::text)
            AND (a.losses_alone < %(max_lost)s OR (a.worker IS NOT NULL AND NOT a.alone))
            AND NOT EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = a.worker AND w.lease_until > now())
        )
        OR (
            a.status = 'queued'
            AND (
                a.sent_at < to_timestamp(%(epoch_start)s)
                OR (
                    a.sent_at < now() - interval '3 s' * power(2, least(a.sends, 6) - 1)
                    AND EXISTS (
                        SELECT 1 FROM unnest(%(queues)s::text[], %(heads)s::float8[]) AS q (name, head)
                        WHERE q.name = a.queue AND (q.head IS NULL OR to_timestamp(q.head) > a.sent_at)
                    )
                )
            )
        )
      )
    ORDER BY a.available_at LIMIT %(limit)s FOR UPDATE OF a SKIP LOCKED
),
marked AS (
    UPDATE flujo_attempts a
    SET status = 'queued', sent_at = now(), sends = CASE a.status WHEN 'running' THEN 1 ELSE least(a.sends, 1000000) + 1 END,
        waits_for = CASE WHEN a.status <> 'running' THEN a.waits_for END, waits_since = CASE WHEN a.status <> 'running' THEN a.waits_since END,
        loss = CASE WHEN a.status = 'running' THEN
-- include latest_loss
        ELSE a.loss END,
        losses = least(a.losses, 1000000) + (a.status = 'running')::int,
        losses_alone = least(a.losses_alone, 1000000) + (a.status = 'running' AND (a.worker IS NULL OR a.alone))::int
    FROM due WHERE a.key = due.key RETURNING a.*, due.why
),
story AS (
    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data)
    SELECT m.run_id, m.key, m.fence, 'attempt.lost', 'warning', jsonb_build_object('worker', m.worker, 'losses', m.losses, 'losses_alone', m.losses_alone)
    FROM marked m WHERE m.why = 'lost'
    UNION ALL SELECT m.run_id, m.key, m.fence, 'attempt.sent_again', 'info', jsonb_build_object('why', m.why, 'sends', m.sends)
    FROM marked m WHERE m.why IN ('epoch', 'gone')
)
SELECT m.why, m.fence, m.key, m.address, m.step, m.number, m.kind, m.queue, m.guidance, m.units_from, m.pauses,
       s.version, s.output AS input, s.context, s.lanes::text, s.metadata ->> 'flujo.code' AS code,
       r.id AS run, r.reference, r.fingerprint, r.queue AS run_queue, r.priority, r.tenant, r.trace_parent, r.root, r.aros::text, r.settings::text, r.limits::text, r.gates IS NOT NULL AS is_gated,
       extract(epoch FROM r.deadline_at)::float8 AS deadline
FROM marked m LEFT JOIN flujo_scopes s ON s.run_id = m.run_id AND s.address = m.address JOIN flujo_runs r ON r.id = m.run_id;
