held AS (
    SELECT r.key, r.scope, r.usd, r.tokens FROM flujo_reservations r
    WHERE r.key = ANY(ARRAY(SELECT key FROM releasing)) AND r.held ORDER BY r.key, r.scope FOR UPDATE
),
marked AS (UPDATE flujo_reservations r SET held = false FROM held h WHERE r.key = h.key AND r.scope = h.scope),
sums AS (SELECT scope, sum(usd) AS usd, sum(tokens)::bigint AS tokens FROM held GROUP BY scope),
budget AS (SELECT b.scope, s.usd, s.tokens FROM flujo_budgets b JOIN sums s ON s.scope = b.scope ORDER BY b.scope FOR UPDATE OF b),
back AS (
    UPDATE flujo_budgets b SET reserved_usd = b.reserved_usd - g.usd, reserved_tokens = b.reserved_tokens - g.tokens
    FROM budget g WHERE b.scope = g.scope
)
