SELECT place, digest, nth, operation, effect, key, fence, claim_id::text, tries, asked, answer, input_tokens, output_tokens, requests, cost_usd, model
FROM flujo_units WHERE run_id = %(run)s::text AND place = ANY(%(places)s::text[]);
