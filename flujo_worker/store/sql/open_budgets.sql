-- The rows that are about to be reserved from. What a budget began with stays its limit.
INSERT INTO flujo_budgets (scope, limit_usd, limit_tokens)
SELECT b.scope, b.usd::numeric, b.tokens
FROM unnest(%(scopes)s::text[], %(limits_usd)s::text[], %(limits_tokens)s::bigint[]) AS b (scope, usd, tokens)
ORDER BY b.scope
ON CONFLICT DO NOTHING;
