-- The rows of the budgets to reserve from. The initial limit of a budget stays.
INSERT INTO flujo_budgets (scope, limit_usd, limit_tokens)
SELECT b.scope, b.usd::numeric, b.tokens
FROM unnest(%(scopes)s::text[], %(limits_usd)s::text[], %(limits_tokens)s::bigint[]) AS b (scope, usd, tokens) ORDER BY b.scope
ON CONFLICT DO NOTHING;
