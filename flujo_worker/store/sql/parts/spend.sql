    INSERT INTO flujo_spends (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, model)
    SELECT m.key, m.fence, coalesce(m.claim_id, '00000000-0000-0000-0000-000000000000'), m.run, u.input_tokens, u.output_tokens, u.requests, u.cost_usd, u.model
    FROM (
        SELECT unnest(%(spend_of)s::int[]) AS of, unnest(%(spend_input_tokens)s::bigint[]) AS input_tokens,
               unnest(%(spend_output_tokens)s::bigint[]) AS output_tokens, unnest(%(spend_requests)s::int[]) AS requests,
               unnest(%(spend_cost_usd)s::float8[]) AS cost_usd, unnest(%(spend_model)s::text[]) AS model
    ) u JOIN merged m ON m.place = u.of
    ON CONFLICT DO NOTHING
