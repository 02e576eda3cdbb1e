-- What a run has paid, with its child runs, by step and model; what it holds of budgets; and requests of durable steps that may have been paid and
-- are not on record: begun without an answer, or begun again by a later claim. One that a live claim has just asked is none of these yet.
WITH kin AS MATERIALIZED (SELECT flujo_kin(%(run)s::text) AS id)
SELECT 'reserved' AS what, a.run_id, a.address, a.step, NULL AS model, 0::bigint AS requests, 0::bigint AS input_tokens, 0::bigint AS output_tokens,
       sum(h.tokens)::bigint AS tokens, sum(h.usd)::float8 AS cost_usd
FROM kin k JOIN flujo_attempts a ON a.run_id = k.id
CROSS JOIN LATERAL (SELECT max(r.tokens) AS tokens, max(r.usd) AS usd FROM flujo_reservations r WHERE r.key = a.key AND r.held HAVING count(*) > 0) h
GROUP BY a.run_id, a.address, a.step
UNION ALL
SELECT 'paid', a.run_id, a.address, a.step, s.model, sum(s.requests), sum(s.input_tokens)::bigint, sum(s.output_tokens)::bigint,
       sum(s.input_tokens + s.output_tokens)::bigint, sum(s.cost_usd)
FROM kin k JOIN flujo_spends s ON s.run_id = k.id JOIN flujo_attempts a ON a.key = s.key
GROUP BY a.run_id, a.address, a.step, s.model
UNION ALL SELECT 'possibly paid', a.run_id, a.address, a.step, u.model, sum(u.times), 0, 0, 0, 0
FROM kin k JOIN (
    SELECT u.run_id, u.key, u.model, u.tries - (u.settled_at IS NOT NULL)::int - (
        u.settled_at IS NULL AND EXISTS (SELECT FROM flujo_attempts l WHERE l.key = u.key AND l.status = 'running' AND l.claim_id = u.claim_id)
    )::int AS times
    FROM flujo_units u WHERE u.effect IS NULL
) u ON u.run_id = k.id JOIN flujo_attempts a ON a.key = u.key
WHERE u.times > 0 GROUP BY a.run_id, a.address, a.step, u.model ORDER BY 2, 3, 4, 1 DESC, 5;
