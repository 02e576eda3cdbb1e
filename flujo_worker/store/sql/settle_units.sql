-- Record the answers of units, whether or not they were announced: an announcement may be overtaken. The first answer stays. The cost of an
-- answer is booked with it, under fence 0 of its claim: so it is recorded exactly once, however the claim ends. The outcome books the rest.
-- Losses of an attempt that ran alone are forgotten: it has made progress since.
WITH settled AS (
    INSERT INTO flujo_units AS u (run_id, place, digest, nth, operation, effect, key, fence, claim_id, asked, settled_at, answer, input_tokens,
                                  output_tokens, requests, cost_usd, model)
    SELECT q.run_id, q.place, q.digest, q.nth, q.operation, q.effect, q.key, q.fence, q.claim_id, q.asked, now(), q.answer, q.input_tokens,
           q.output_tokens, q.requests, q.cost_usd, q.model
    FROM (
-- include units
           , unnest(%(answer)s::bytea[]) AS answer, unnest(%(input_tokens)s::bigint[]) AS input_tokens, unnest(%(output_tokens)s::bigint[]) AS output_tokens,
           unnest(%(requests)s::int[]) AS requests, unnest(%(cost_usd)s::float8[]) AS cost_usd, unnest(%(model)s::text[]) AS model
    ) q
    WHERE (SELECT a.status = 'running' AND a.fence = q.fence AND a.claim_id = q.claim_id FROM flujo_attempts a WHERE a.key = q.key)
    ON CONFLICT (run_id, place, digest, nth) DO UPDATE
    SET key = excluded.key, fence = excluded.fence, claim_id = excluded.claim_id, tries = u.tries + (u.claim_id <> excluded.claim_id)::int, settled_at = now(),
        answer = excluded.answer, input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens, requests = excluded.requests,
        cost_usd = excluded.cost_usd, model = excluded.model
    WHERE u.settled_at IS NULL
    RETURNING u.run_id, u.place, u.digest, u.nth, u.key, u.claim_id, u.input_tokens, u.output_tokens, u.requests, u.cost_usd, u.model
),
spent AS (
    INSERT INTO flujo_spends AS s (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, model)
    SELECT u.key, 0, u.claim_id, u.run_id, sum(u.input_tokens), sum(u.output_tokens), sum(u.requests), sum(u.cost_usd),
           CASE WHEN count(DISTINCT u.model) = 1 THEN min(u.model) END
    FROM settled u WHERE u.requests > 0 OR u.input_tokens > 0 OR u.output_tokens > 0 OR u.cost_usd > 0
    GROUP BY u.key, u.claim_id, u.run_id ORDER BY u.key
    ON CONFLICT (key, fence, claim_id) DO UPDATE
    SET input_tokens = s.input_tokens + excluded.input_tokens, output_tokens = s.output_tokens + excluded.output_tokens,
        requests = s.requests + excluded.requests, cost_usd = s.cost_usd + excluded.cost_usd,
        model = CASE WHEN s.model = excluded.model THEN s.model END
),
progress AS (
    UPDATE flujo_attempts a SET losses = a.losses - a.losses_alone, losses_alone = 0
    WHERE a.key = ANY(ARRAY(SELECT key FROM settled)) AND a.losses_alone > 0
)
SELECT run_id, place, digest, nth FROM settled;
