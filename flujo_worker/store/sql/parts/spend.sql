    INSERT INTO flujo_spends (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, model)
    SELECT %(key)s::text, %(fence)s::int, coalesce(%(claim_id)s::uuid, '00000000-0000-0000-0000-000000000000'), %(run)s::text, %(input_tokens)s::bigint, %(output_tokens)s::bigint, %(requests)s::int, %(cost_usd)s::float8, %(model)s::text
    WHERE %(spends)s::bool
    ON CONFLICT DO NOTHING
