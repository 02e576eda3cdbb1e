SELECT 'budget ' || b.scope || ' has booked ' || b.settled_usd + b.overrun_usd || ' USD and ' || b.settled_tokens + b.overrun_tokens
       || ' tokens, spent were ' || coalesce(sum(s.cost_usd::numeric), 0) || ' and ' || coalesce(sum(s.input_tokens + s.output_tokens), 0) AS what
FROM flujo_runs r JOIN flujo_budgets b ON b.scope = 'run:' || (r.limits ->> 'run') LEFT JOIN flujo_spends s ON s.run_id = r.id
WHERE r.metadata ->> 'chaos' = %(monkey)s GROUP BY b.scope, b.settled_usd, b.overrun_usd, b.settled_tokens, b.overrun_tokens
HAVING (round(b.settled_usd + b.overrun_usd, 6), b.settled_tokens + b.overrun_tokens)
       <> (round(coalesce(sum(s.cost_usd::numeric), 0), 6), coalesce(sum(s.input_tokens + s.output_tokens), 0));
