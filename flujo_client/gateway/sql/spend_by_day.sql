-- What was spent on these days (in UTC), by model.
SELECT (s.at AT TIME ZONE 'UTC')::date AS day, s.model, sum(s.requests)::bigint AS requests, sum(s.input_tokens)::bigint AS input_tokens,
       sum(s.output_tokens)::bigint AS output_tokens, sum(s.cost_usd)::float8 AS cost_usd
FROM flujo_spends s
WHERE s.at >= (%(first)s::text::date)::timestamp AT TIME ZONE 'UTC' AND s.at < (%(last)s::text::date + 1)::timestamp AT TIME ZONE 'UTC'
GROUP BY 1, 2 ORDER BY 1, 2;
