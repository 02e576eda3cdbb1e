-- Book what attempts under limits have spent, once for each of their claims. Release the reservations of attempts that have ended, and all those of a run
-- that has ended. The part that a limit does not cover is overrun. An attempt that is live, or was lost, retains its reservation. hold_budgets.sql has
-- locked all changed rows before: values must not be computed from rows that still change. In a group only merges of this transaction are settled. If the
-- spend exceeds a limit, the group is rolled back, and each is merged alone: a breach is reported only to the one that caused it.
WITH merged AS MATERIALIZED (
    SELECT d.of, a.key, d.fence, coalesce(d.claim_id, '00000000-0000-0000-0000-000000000000') AS claim_id, a.run_id,
           d.releases AND a.ended_at IS NOT NULL AS releases, d.of = ANY(%(run_of)s::int[]) AS ends
    FROM (
        SELECT unnest(%(place)s::int[]) AS of, unnest(%(close_key)s::text[]) AS key, unnest(%(close_fence)s::int[]) AS fence,
               unnest(%(close_claim_id)s::uuid[]) AS claim_id, unnest(%(releases)s::bool[]) AS releases
    ) d CROSS JOIN LATERAL (
        SELECT a.key, a.run_id, a.ended_at FROM flujo_attempts a
        WHERE a.key = d.key AND (%(is_alone)s::bool OR a.xmin = pg_current_xact_id()::xid) LIMIT 1
    ) a
),
bill AS MATERIALIZED (
    SELECT m.key, m.fence, m.claim_id, m.run_id, u.usd, u.input_tokens, u.output_tokens, u.requests, u.cost_usd, u.model
    FROM (
        SELECT unnest(%(spend_of)s::int[]) AS of, unnest(%(spent_usd)s::text[])::numeric AS usd,
               unnest(%(spend_input_tokens)s::bigint[]) AS input_tokens, unnest(%(spend_output_tokens)s::bigint[]) AS output_tokens,
               unnest(%(spend_requests)s::int[]) AS requests, unnest(%(spend_cost_usd)s::float8[]) AS cost_usd, unnest(%(spend_model)s::text[]) AS model
    ) u JOIN merged m ON m.of = u.of
),
spent AS (
    INSERT INTO flujo_spends (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, model)
    SELECT key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, model FROM bill ON CONFLICT DO NOTHING
    RETURNING key
),
freed AS MATERIALIZED (
    SELECT r.key, r.scope, r.usd, r.tokens, true AS is_own FROM merged m
    CROSS JOIN LATERAL (SELECT r.* FROM flujo_reservations r WHERE r.key = m.key OFFSET 0) r
    WHERE m.releases AND r.held
    UNION ALL SELECT r.key, r.scope, r.usd, r.tokens, false FROM merged m
    CROSS JOIN LATERAL (SELECT r.* FROM flujo_reservations r WHERE r.run_id = m.run_id AND r.held OFFSET 0) r
    WHERE m.ends AND NOT EXISTS (SELECT 1 FROM merged o WHERE o.key = r.key AND o.releases)
),
marked AS (
    UPDATE flujo_reservations r SET held = false FROM freed f
    WHERE r.key = f.key AND r.scope = f.scope AND r.key = ANY(ARRAY(SELECT key FROM freed))
),
change AS MATERIALIZED (
    SELECT scope, sum(own_usd) AS own_usd, sum(own_tokens)::bigint AS own_tokens, sum(back_usd) AS back_usd, sum(back_tokens)::bigint AS back_tokens,
           sum(usd) AS usd, sum(tokens)::bigint AS tokens
    FROM (
        SELECT f.scope, CASE WHEN f.is_own THEN f.usd ELSE 0 END AS own_usd, CASE WHEN f.is_own THEN f.tokens ELSE 0 END AS own_tokens,
               f.usd AS back_usd, f.tokens AS back_tokens, 0 AS usd, 0 AS tokens
        FROM freed f
        UNION ALL SELECT r.scope, 0, 0, 0, 0, k.usd, k.input_tokens + k.output_tokens
        FROM bill k CROSS JOIN LATERAL (SELECT r.scope FROM flujo_reservations r WHERE r.key = k.key OFFSET 0) r
        WHERE EXISTS (SELECT 1 FROM spent s WHERE s.key = k.key)
    ) parts GROUP BY scope
),
booked AS MATERIALIZED (
    SELECT c.*, least(c.usd, coalesce(b.limit_usd - b.settled_usd - b.reserved_usd + c.own_usd, c.usd)) AS covered_usd,
           least(c.tokens, coalesce(b.limit_tokens - b.settled_tokens - b.reserved_tokens + c.own_tokens, c.tokens)) AS covered_tokens
    FROM change c CROSS JOIN LATERAL (SELECT b.* FROM flujo_budgets b WHERE b.scope = c.scope LIMIT 1) b
)
UPDATE flujo_budgets b
SET reserved_usd = b.reserved_usd - k.back_usd, reserved_tokens = b.reserved_tokens - k.back_tokens,
    settled_usd = b.settled_usd + k.covered_usd, settled_tokens = b.settled_tokens + k.covered_tokens,
    overrun_usd = b.overrun_usd + k.usd - k.covered_usd, overrun_tokens = b.overrun_tokens + k.tokens - k.covered_tokens
FROM booked k WHERE b.scope = k.scope AND b.scope = ANY(ARRAY(SELECT scope FROM booked))
RETURNING b.*, CASE WHEN k.usd = k.covered_usd AND k.tokens = k.covered_tokens THEN false WHEN %(is_alone)s::bool THEN true ELSE flujo_undo() END AS is_breach;
