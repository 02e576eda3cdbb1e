-- Book the spend of an attempt under limits, once for each of its claims, and release its reservation when it has ended. The part that the
-- limit does not cover is overrun. An attempt that has not ended retains its reservation, and so does, until its run ends, one that was
-- lost. hold_budgets.sql has locked all changed rows before: the booked values must not be computed from rows that still change.
WITH spent AS (
    INSERT INTO flujo_spends (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd)
    SELECT %(key)s::text, %(fence)s::int, coalesce(%(claim_id)s::uuid, '00000000-0000-0000-0000-000000000000'), %(run)s::text, %(input_tokens)s::bigint, %(output_tokens)s::bigint, %(requests)s::int, %(cost_usd)s::float8
    WHERE %(spends)s::bool
    ON CONFLICT DO NOTHING
    RETURNING 1
),
ended AS (
    SELECT %(releases)s::bool AND NOT EXISTS (
        SELECT 1 FROM flujo_attempts a WHERE a.key = %(key)s::text AND a.status IN ('ready', 'queued', 'running')
    ) AS yes
),
taken AS (
    SELECT r.scope, r.usd, r.tokens, r.held AND (SELECT yes FROM ended) AS frees
    FROM flujo_reservations r WHERE r.key = %(key)s::text
),
freed AS (
    UPDATE flujo_reservations r SET held = false FROM taken t WHERE r.key = %(key)s::text AND r.scope = t.scope AND t.frees
),
part AS (
    SELECT t.scope, CASE WHEN t.frees THEN t.usd ELSE 0 END AS back_usd, CASE WHEN t.frees THEN t.tokens ELSE 0 END AS back_tokens,
           CASE WHEN EXISTS (SELECT 1 FROM spent) THEN %(spent_usd)s::numeric ELSE 0 END AS usd,
           CASE WHEN EXISTS (SELECT 1 FROM spent) THEN %(input_tokens)s::bigint + %(output_tokens)s::bigint ELSE 0 END AS tokens
    FROM taken t
),
booked AS (
    SELECT p.*, least(p.usd, coalesce(b.limit_usd - b.settled_usd - b.reserved_usd + p.back_usd, p.usd)) AS covered_usd,
           least(p.tokens, coalesce(b.limit_tokens - b.settled_tokens - b.reserved_tokens + p.back_tokens, p.tokens)) AS covered_tokens
    FROM flujo_budgets b JOIN part p ON p.scope = b.scope
)
UPDATE flujo_budgets b
SET reserved_usd = b.reserved_usd - k.back_usd, reserved_tokens = b.reserved_tokens - k.back_tokens,
    settled_usd = b.settled_usd + k.covered_usd, settled_tokens = b.settled_tokens + k.covered_tokens,
    overrun_usd = b.overrun_usd + k.usd - k.covered_usd, overrun_tokens = b.overrun_tokens + k.tokens - k.covered_tokens
FROM booked k WHERE b.scope = k.scope
RETURNING b.*, k.usd > k.covered_usd OR k.tokens > k.covered_tokens AS is_breach;
