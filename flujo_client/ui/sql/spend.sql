-- The spend of each of the last days (in UTC), by pipeline, tenant and model: of those who spent most, and of all others together (no name).
-- Runs that retention has deleted, and that left a summary, count for the day they ended.
WITH sums AS (
    SELECT CASE 0 WHEN grouping(pipeline) THEN 'pipeline' WHEN grouping(tenant) THEN 'tenant' ELSE 'model' END AS kind,
           coalesce(pipeline, tenant, model, '') AS name, day, sum(usd) AS usd, sum(tokens::float8) AS tokens, sum(calls) AS calls
    FROM (
        SELECT r.name AS pipeline, r.tenant, s.model, (s.at AT TIME ZONE 'UTC')::date AS day, s.cost_usd AS usd, s.input_tokens + s.output_tokens AS tokens, s.requests AS calls
        FROM flujo_spends s JOIN flujo_runs r ON r.id = s.run_id WHERE s.at >= %(since)s::timestamptz UNION ALL
        SELECT name, tenant, NULL, (ended_at AT TIME ZONE 'UTC')::date, cost_usd, tokens, 0 FROM flujo_deleted_runs WHERE ended_at >= %(since)s::timestamptz
    ) o GROUP BY GROUPING SETS ((pipeline, day), (tenant, day), (model, day))
),
ranked AS (SELECT kind, name, row_number() OVER (PARTITION BY kind ORDER BY sum(usd) DESC, sum(tokens) DESC, name) AS place FROM sums GROUP BY 1, 2)
SELECT s.kind, CASE WHEN r.place <= %(named)s::int THEN s.name END AS name, s.day, sum(s.usd) AS usd, sum(s.tokens)::bigint AS tokens, sum(s.calls)::bigint AS calls
FROM sums s JOIN ranked r USING (kind, name)
GROUP BY s.kind, 2, s.day, least(r.place, %(named)s::int + 1) ORDER BY least(r.place, %(named)s::int + 1), s.day;
