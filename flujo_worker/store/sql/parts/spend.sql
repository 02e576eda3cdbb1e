    INSERT INTO flujo_spends (key, fence, claimed_at, run_id, input_tokens, output_tokens, requests, cost_usd)
    SELECT %(key)s::text, %(fence)s::int, coalesce(%(claimed_at)s::bigint, 0), %(run)s::text, %(input_tokens)s::bigint, %(output_tokens)s::bigint, %(requests)s::int, %(cost_usd)s::float8
    WHERE %(spends)s::bool
    ON CONFLICT DO NOTHING
