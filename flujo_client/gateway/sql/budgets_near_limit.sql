SELECT scope, limit_usd, limit_tokens, spent_usd, spent_tokens, reserved_usd, reserved_tokens, overrun_usd, overrun_tokens
FROM (
    SELECT b.scope, b.limit_usd::float8 AS limit_usd, b.limit_tokens,
           (b.settled_usd + b.overrun_usd)::float8 AS spent_usd, b.settled_tokens + b.overrun_tokens AS spent_tokens,
           b.reserved_usd::float8 AS reserved_usd, b.reserved_tokens, b.overrun_usd::float8 AS overrun_usd, b.overrun_tokens,
           greatest(
               (b.settled_usd + b.overrun_usd + b.reserved_usd)::float8 / nullif(b.limit_usd, 0)::float8,
               (b.settled_tokens + b.overrun_tokens + b.reserved_tokens)::float8 / nullif(b.limit_tokens, 0)
           ) AS part
    FROM flujo_budgets b
    WHERE starts_with(b.scope, 'tenant:') AND right(b.scope, 11) = to_char(now() AT TIME ZONE 'UTC', ':YYYY-MM-DD')
) u
WHERE u.part >= %(part)s::float8 ORDER BY u.part DESC, u.scope LIMIT %(limit)s::int;
