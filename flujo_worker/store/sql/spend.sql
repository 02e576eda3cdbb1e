INSERT INTO flujo_spends (key, fence, run_id, input_tokens, output_tokens, requests, cost_usd)
VALUES (%(key)s, %(fence)s, %(run)s, %(input_tokens)s, %(output_tokens)s, %(requests)s, %(cost_usd)s)
ON CONFLICT DO NOTHING;
