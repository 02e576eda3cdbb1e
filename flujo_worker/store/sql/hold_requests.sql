-- Set what an attempt holds of its budgets while it asks request by request, and book what one of them has cost: in all of them, or in none if
-- it would hold more than is left. hold_budgets.sql has locked the rows. It names whole amounts, so that asking again changes nothing.
WITH asked AS MATERIALIZED (
    SELECT q.scope, q.usd, q.tokens, b.limit_usd, b.limit_tokens, coalesce(r.usd, 0) AS own_usd, coalesce(r.tokens, 0) AS own_tokens,
           b.limit_usd - b.settled_usd - b.reserved_usd + coalesce(r.usd, 0) - q.usd AS left_usd,
           b.limit_tokens - b.settled_tokens - b.reserved_tokens + coalesce(r.tokens, 0) - q.tokens AS left_tokens
    FROM (SELECT unnest(%(scopes)s::text[]) AS scope, unnest(%(usd)s::text[])::numeric AS usd, unnest(%(tokens)s::bigint[]) AS tokens) q
    JOIN flujo_budgets b ON b.scope = q.scope LEFT JOIN flujo_reservations r ON r.key = %(key)s::text AND r.scope = q.scope AND r.held
),
judged AS MATERIALIZED (
    SELECT a.*, (a.left_usd < 0 AND a.usd > a.own_usd OR a.left_tokens < 0 AND a.tokens > a.own_tokens) IS TRUE AS is_refused FROM asked a
),
held AS (
    INSERT INTO flujo_reservations (key, scope, run_id, usd, tokens, held)
    SELECT %(key)s::text, j.scope, %(run)s::text, j.usd, j.tokens, true FROM judged j WHERE NOT EXISTS (SELECT FROM judged WHERE is_refused)
    ON CONFLICT (key, scope) DO UPDATE SET usd = excluded.usd, tokens = excluded.tokens, held = true
),
change AS MATERIALIZED (
    SELECT j.*, CASE WHEN r.any THEN 0 ELSE j.usd - j.own_usd END AS more_usd, CASE WHEN r.any THEN 0 ELSE j.tokens - j.own_tokens END AS more_tokens,
           s.usd AS spent_usd, s.tokens AS spent_tokens, least(s.usd, CASE WHEN j.left_usd < 0 THEN 0 ELSE j.left_usd END) AS covered_usd,
           least(s.tokens, CASE WHEN j.left_tokens < 0 THEN 0 ELSE j.left_tokens END) AS covered_tokens
    FROM judged j, (SELECT bool_or(is_refused) AS any FROM judged) r,
         (SELECT %(spent_usd)s::text::numeric AS usd, %(spent_tokens)s::bigint AS tokens) s
)
UPDATE flujo_budgets b
SET reserved_usd = b.reserved_usd + c.more_usd, reserved_tokens = b.reserved_tokens + c.more_tokens,
    settled_usd = b.settled_usd + c.covered_usd, settled_tokens = b.settled_tokens + c.covered_tokens,
    overrun_usd = b.overrun_usd + c.spent_usd - c.covered_usd, overrun_tokens = b.overrun_tokens + c.spent_tokens - c.covered_tokens
FROM change c WHERE b.scope = c.scope
RETURNING b.*, c.is_refused, c.own_usd, c.own_tokens, (c.spent_usd, c.spent_tokens) <> (c.covered_usd, c.covered_tokens) AS is_breach;
