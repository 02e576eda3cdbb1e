-- Take a batch of a pool: one that is due and that no running claim has, or else a new one of the waiting requests, if they are enough or have waited
-- long enough; they are locked only then. A batch whose claim ended without recording it is due again.
WITH held AS (
    UPDATE flujo_batches b SET key = %(key)s::text, claim_id = %(claim_id)s::uuid, due_at = now() + interval '1 s'
    WHERE b.id = (
        SELECT d.id FROM flujo_batches d
        WHERE d.pool = %(pool)s::text AND d.due_at <= now()
          AND NOT EXISTS (SELECT FROM flujo_attempts a WHERE a.key = d.key AND a.claim_id = d.claim_id AND a.status = 'running')
        ORDER BY d.due_at LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    RETURNING b.id, b.handle, b.began_at
),
waiting AS MATERIALIZED (
    SELECT r.id, r.asked_at, r.size FROM flujo_batch_requests r JOIN flujo_runs u ON u.id = r.run_id AND u.ended_at IS NULL
    WHERE r.pool = %(pool)s::text AND r.batch IS NULL AND r.result IS NULL AND r.live_at > now() AND NOT EXISTS (SELECT FROM held)
      AND (EXISTS (
        SELECT FROM flujo_batch_requests o WHERE o.pool = %(pool)s::text AND o.batch IS NULL AND o.result IS NULL AND o.live_at > now()
          AND o.asked_at <= now() - make_interval(secs => %(wait_s)s::float8)
      ) OR EXISTS (
        SELECT FROM flujo_batch_requests o WHERE o.pool = %(pool)s::text AND o.batch IS NULL AND o.result IS NULL OFFSET %(most)s::int - 1
      ))
    ORDER BY r.asked_at LIMIT %(most)s::int FOR UPDATE OF r SKIP LOCKED
),
made AS (
    INSERT INTO flujo_batches (pool, key, claim_id, due_at)
    SELECT %(pool)s::text, %(key)s::text, %(claim_id)s::uuid, now() + interval '1 s' FROM waiting
    HAVING count(*) >= %(most)s::int OR min(asked_at) <= now() - make_interval(secs => %(wait_s)s::float8)
    RETURNING id, handle, began_at
),
joined AS (
    UPDATE flujo_batch_requests r SET batch = made.id
    FROM made, (SELECT id, sum(size) OVER (ORDER BY asked_at, id) AS bytes FROM waiting) w
    WHERE r.id = w.id AND (%(most_bytes)s::bigint IS NULL OR w.bytes <= %(most_bytes)s::bigint)
)
SELECT id::text, handle, extract(epoch FROM began_at)::float8 AS began, false AS is_new FROM held
UNION ALL SELECT id::text, handle, extract(epoch FROM began_at)::float8, true FROM made;
