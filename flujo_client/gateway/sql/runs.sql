-- Runs, newest first, without their values; each filter is off when null. Totals as in run.sql, only of the listed runs. A reader of many
-- pages continues `before` the last run that it has read.
WITH page AS MATERIALIZED (
    SELECT r.id, r.reference, r.fingerprint, r.name, r.reason, r.error, r.tenant, r.metadata, r.created_at, r.started_at, r.ended_at,
           CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status,
           r.deadline_at, r.cancel_requested_at, r.parent_run, r.limits -> 'limits' AS limits,
           r.parent_run IS NOT NULL AND r.parent_address IS NULL AS is_background, r.retry_of, r.retries, r.forked_from, r.from_step, r.retried_as,
           r.parked, r.failed_key, r.replaced_by
    FROM flujo_runs r
    WHERE
-- include matching
      AND (%(before_at)s::timestamptz IS NULL OR r.created_at <= %(before_at)s::timestamptz)
      AND (%(before_at)s::timestamptz IS NULL OR (r.created_at, r.id) < (%(before_at)s::timestamptz, %(before_id)s::text))
    ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s::int OFFSET %(offset)s::int
)
SELECT page.*, CASE WHEN page.status = 'queued' THEN flujo_waits_for(page.id) END AS waits_for, p.version, NULL::bytea AS input, NULL::bytea AS output, NULL::bytea AS context,
       coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd
FROM page JOIN flujo_pipelines p ON p.fingerprint = page.fingerprint
CROSS JOIN LATERAL (
    SELECT sum(x.tokens) AS tokens, sum(x.cost_usd) AS cost_usd
    FROM flujo_kin(page.id) k
    -- Summed run by run, so that the planner can only use the index on the run.
    CROSS JOIN LATERAL (SELECT sum(s.input_tokens + s.output_tokens) AS tokens, sum(s.cost_usd) AS cost_usd FROM flujo_spends s WHERE s.run_id = k) x
) t
ORDER BY page.created_at DESC, page.id DESC;
