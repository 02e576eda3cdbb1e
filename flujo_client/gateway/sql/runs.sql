-- Runs, newest first, without their values; each filter is off when null. Totals as in run.sql, only of the listed runs.
WITH page AS MATERIALIZED (
    SELECT r.id, r.reference, r.fingerprint, r.name, v.status, r.reason, r.error, r.tenant, r.metadata, r.created_at, r.started_at, r.ended_at,
           r.deadline_at, r.cancel_requested_at, r.parent_run, r.limits -> 'limits' AS limits,
           r.parent_run IS NOT NULL AND r.parent_address IS NULL AS is_background, r.retry_of, r.retries, r.forked_from, r.from_step
    FROM flujo_runs r
    CROSS JOIN LATERAL (SELECT CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status) v
    WHERE (%(prefix)s::text IS NULL OR starts_with(r.id, %(prefix)s::text))
      AND (%(end)s::text IS NULL OR right(r.id, length(%(end)s::text)) = %(end)s::text)
      AND (%(part)s::text IS NULL OR strpos(r.id, %(part)s::text) > 0)
      AND (%(status)s::text IS NULL OR r.status = %(status)s::text OR (%(status)s::text = 'paused' AND r.status IN ('queued', 'running')))
      AND (%(status)s::text IS NULL OR v.status = %(status)s::text)
      AND (%(pipeline)s::text IS NULL OR r.name = %(pipeline)s::text OR r.reference = %(pipeline)s::text)
      AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
      AND (%(metadata)s::jsonb IS NULL OR r.metadata @> %(metadata)s::jsonb)
      AND (%(background)s::bool IS NULL OR (r.parent_run IS NOT NULL AND r.parent_address IS NULL) = %(background)s::bool)
      AND (%(ended_within_s)s::float8 IS NULL OR r.ended_at > now() - make_interval(secs => %(ended_within_s)s::float8))
      AND (NOT %(not_retried)s::bool OR NOT EXISTS (SELECT 1 FROM flujo_runs n WHERE n.retry_of = r.id))
      AND (%(parent)s::text IS NULL OR r.parent_run = %(parent)s::text OR (%(parent)s::text = '' AND r.parent_run IS NULL))
    ORDER BY r.created_at DESC, r.id DESC
    LIMIT %(limit)s::int OFFSET %(offset)s::int
)
SELECT page.*, CASE WHEN page.status = 'queued' THEN flujo_waits_for(page.id) END AS waits_for, p.version, NULL::bytea AS input, NULL::bytea AS output, NULL::bytea AS context,
       coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd
FROM page
JOIN flujo_pipelines p ON p.fingerprint = page.fingerprint
CROSS JOIN LATERAL (
    SELECT sum(x.tokens) AS tokens, sum(x.cost_usd) AS cost_usd
    FROM flujo_kin(page.id) k
    -- Summed run by run, so that the planner can only use the index on the run.
    CROSS JOIN LATERAL (
        SELECT sum(s.input_tokens + s.output_tokens) AS tokens, sum(s.cost_usd) AS cost_usd FROM flujo_spends s WHERE s.run_id = k
    ) x
) t
ORDER BY page.created_at DESC, page.id DESC;
