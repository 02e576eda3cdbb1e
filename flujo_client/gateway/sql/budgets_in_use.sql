-- The budgets that running attempts have reserved from.
SELECT b.scope, b.limit_usd::float8 AS limit_usd, b.limit_tokens,
       (b.settled_usd + b.overrun_usd)::float8 AS spent_usd, b.settled_tokens + b.overrun_tokens AS spent_tokens,
       b.reserved_usd::float8 AS reserved_usd, b.reserved_tokens, b.overrun_usd::float8 AS overrun_usd, b.overrun_tokens
FROM flujo_budgets b
WHERE b.scope IN (SELECT v.scope FROM flujo_reservations v WHERE v.held)
ORDER BY b.scope
LIMIT %(limit)s::int;
