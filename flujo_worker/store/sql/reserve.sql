-- The reservations of claims: for each claim all or nothing. This transaction has made the claims, and holds the budgets too; alone, the
-- claim may be an earlier one, whose answer was lost. Several claims may reserve from one budget: each counts those granted before it. A
-- claim that would not fit if it were the first is refused; it was claimed anyway, so that it can be concluded. If another one does not fit
-- after those before it, the whole group is rolled back, and each is sent alone. The reservation of an earlier claim, whose worker was lost,
-- stays: the spend of that one is unknown. The result has the budgets that refused, as each refused claim found them.
WITH asked AS MATERIALIZED (
    SELECT q.of, q.scope, q.usd, q.tokens, a.key, a.run_id
    FROM (
        SELECT unnest(%(ask_of)s::int[]) AS of, unnest(%(ask_scope)s::text[]) AS scope, unnest(%(ask_usd)s::text[])::numeric AS usd,
               unnest(%(ask_tokens)s::bigint[]) AS tokens
    ) q CROSS JOIN LATERAL (
        SELECT a.key, a.run_id FROM flujo_attempts a WHERE a.key = (%(key)s::text[])[q.of] AND a.status = 'running'
          AND (%(is_alone)s::bool OR a.xmin = pg_current_xact_id()::xid) LIMIT 1
    ) a
    WHERE (SELECT bool_or(r.held) FROM flujo_reservations r WHERE r.key = a.key) IS NOT TRUE
),
found AS MATERIALIZED (
    SELECT k.*, b.limit_usd, b.limit_tokens, b.settled_usd, b.settled_tokens, b.reserved_usd, b.reserved_tokens, b.overrun_usd, b.overrun_tokens,
           bool_or(b.settled_usd + b.reserved_usd + k.usd > b.limit_usd OR b.settled_tokens + b.reserved_tokens + k.tokens > b.limit_tokens)
               OVER (PARTITION BY k.of) IS TRUE AS is_refused
    FROM asked k CROSS JOIN LATERAL (SELECT b.* FROM flujo_budgets b WHERE b.scope = k.scope LIMIT 1) b
),
ahead AS (
    SELECT f.*, coalesce(sum(CASE WHEN f.is_refused THEN 0 ELSE f.usd END) OVER earlier, 0) AS ahead_usd,
           coalesce(sum(CASE WHEN f.is_refused THEN 0 ELSE f.tokens END) OVER earlier, 0)::bigint AS ahead_tokens
    FROM found f
    WINDOW earlier AS (PARTITION BY f.scope ORDER BY f.of ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
judged AS MATERIALIZED (
    SELECT of, key, run_id, scope, usd, tokens, is_refused, limit_usd, limit_tokens, settled_usd, settled_tokens,
           reserved_usd + ahead_usd AS reserved_usd, reserved_tokens + ahead_tokens AS reserved_tokens, overrun_usd, overrun_tokens,
           coalesce(settled_usd + reserved_usd + ahead_usd + usd <= limit_usd, true)
               AND coalesce(settled_tokens + reserved_tokens + ahead_tokens + tokens <= limit_tokens, true) AS fits
    FROM ahead
),
whole AS MATERIALIZED (SELECT (SELECT count(*) FROM judged WHERE is_refused OR fits) = (SELECT count(*) FROM asked) AS yes),
reserved AS (
    UPDATE flujo_budgets b SET reserved_usd = b.reserved_usd + g.usd, reserved_tokens = b.reserved_tokens + g.tokens
    FROM (SELECT scope, sum(usd) AS usd, sum(tokens)::bigint AS tokens FROM judged WHERE NOT is_refused GROUP BY scope) g
    WHERE b.scope = g.scope AND b.scope = ANY(%(ask_scope)s::text[]) AND (SELECT yes FROM whole)
),
written AS (
    INSERT INTO flujo_reservations (key, scope, run_id, usd, tokens, before_usd, before_tokens, held)
    SELECT j.key, j.scope, j.run_id, j.usd, j.tokens, j.limit_usd - j.settled_usd - j.reserved_usd,
           j.limit_tokens - j.settled_tokens - j.reserved_tokens, NOT j.is_refused
    FROM judged j ON CONFLICT (key, scope) DO UPDATE
    SET held = excluded.held, usd = excluded.usd, tokens = excluded.tokens, before_usd = excluded.before_usd, before_tokens = excluded.before_tokens
)
SELECT of, scope, limit_usd, limit_tokens, settled_usd, settled_tokens, reserved_usd, reserved_tokens, overrun_usd, overrun_tokens
FROM judged WHERE is_refused AND NOT fits
UNION ALL SELECT 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE CASE WHEN (SELECT yes FROM whole) THEN false ELSE flujo_undo() END
ORDER BY of, scope;
