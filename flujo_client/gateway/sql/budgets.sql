-- The budgets that apply to a run, as far as one of its attempts has asked them or its tree has begun one.
SELECT b.scope, b.limit_usd::float8 AS limit_usd, b.limit_tokens,
       (b.settled_usd + b.overrun_usd)::float8 AS spent_usd, b.settled_tokens + b.overrun_tokens AS spent_tokens,
       b.reserved_usd::float8 AS reserved_usd, b.reserved_tokens, b.overrun_usd::float8 AS overrun_usd, b.overrun_tokens
FROM flujo_budgets b
WHERE b.scope IN (
    SELECT 'run:' || (r.limits ->> 'run') FROM flujo_runs r WHERE r.id = %(run)s
    UNION SELECT v.scope FROM flujo_attempts a JOIN flujo_reservations v ON v.key = a.key WHERE a.run_id = %(run)s
)
ORDER BY b.scope;
