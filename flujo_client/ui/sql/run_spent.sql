-- The spend of a run and its child runs; a background run spends from its own budget.
SELECT coalesce(sum(s.input_tokens + s.output_tokens), 0)::bigint AS tokens, coalesce(sum(s.cost_usd), 0)::float8 AS cost_usd
FROM flujo_kin(%(run)s) k JOIN flujo_spends s ON s.run_id = k;
