-- The claim of an attempt under limits: claim.sql, and its whole reservation or none of it. If the reservation is refused, it is claimed
-- anyway, so that it can be concluded, and its row holds nothing. hold_claim.sql has locked the rows that decide this, in the same
-- transaction: a lock that is taken in the middle of a statement comes too late for the values that the statement has computed. The
-- reservation of an earlier claim, whose worker was lost, stays: the spend of that one is unknown.
WITH claimed AS (
-- include claimed
),
kept AS (
    SELECT FROM flujo_reservations r WHERE r.key = %(key)s AND EXISTS (SELECT 1 FROM claimed) HAVING bool_or(r.held)
),
budget AS (
    SELECT b.*, q.asked_usd, q.asked_tokens
    FROM flujo_budgets b JOIN unnest(%(scopes)s::text[], %(usd)s::numeric[], %(tokens)s::bigint[]) AS q (scope, asked_usd, asked_tokens) ON q.scope = b.scope
    WHERE b.scope = ANY(%(scopes)s::text[]) AND EXISTS (SELECT 1 FROM claimed) AND NOT EXISTS (SELECT 1 FROM kept)
),
judged AS (
    SELECT *, coalesce(settled_usd + reserved_usd + asked_usd <= limit_usd, true)
          AND coalesce(settled_tokens + reserved_tokens + asked_tokens <= limit_tokens, true) AS fits
    FROM budget
),
granted AS (SELECT * FROM judged WHERE (SELECT bool_and(fits) AND count(*) = cardinality(%(scopes)s::text[]) FROM judged)),
reserved AS (
    UPDATE flujo_budgets b
    SET reserved_usd = b.reserved_usd + g.asked_usd, reserved_tokens = b.reserved_tokens + g.asked_tokens
    FROM granted g WHERE b.scope = g.scope
),
written AS (
    INSERT INTO flujo_reservations (key, scope, run_id, usd, tokens, before_usd, before_tokens, held)
    SELECT %(key)s, j.scope, (SELECT run_id FROM claimed), j.asked_usd, j.asked_tokens,
           j.limit_usd - j.settled_usd - j.reserved_usd, j.limit_tokens - j.settled_tokens - j.reserved_tokens, EXISTS (SELECT 1 FROM granted)
    FROM judged j
    ON CONFLICT (key, scope) DO UPDATE SET held = excluded.held, usd = excluded.usd, tokens = excluded.tokens,
                                           before_usd = excluded.before_usd, before_tokens = excluded.before_tokens
    RETURNING held
),
begun AS (
-- include run_begun
)
SELECT
    EXISTS (SELECT 1 FROM written WHERE held) OR (SELECT bool_or(h.held) FROM flujo_reservations h WHERE h.key = a.key) IS TRUE AS is_granted,
    (SELECT jsonb_agg(to_jsonb(j) - 'limit_usd' - 'settled_usd' - 'reserved_usd' - 'overrun_usd' - 'asked_usd'
                      || jsonb_build_object('limit_usd', j.limit_usd::text, 'settled_usd', j.settled_usd::text,
                                            'reserved_usd', j.reserved_usd::text, 'overrun_usd', j.overrun_usd::text,
                                            'asked_usd', j.asked_usd::text) ORDER BY j.scope)
     FROM judged j WHERE NOT j.fits) AS refused,
-- include claim_answer
FROM flujo_attempts a LEFT JOIN flujo_runs r ON r.id = a.run_id
WHERE a.key = %(key)s;
