-- Runs, newest first, without their values; each filter is off when null. Totals as in run.sql.
SELECT r.id, r.reference, r.fingerprint, r.name, p.version, v.status, r.reason, r.error, NULL::bytea AS input,
       NULL::bytea AS output, r.tenant, r.metadata, r.created_at, r.started_at, r.ended_at, r.deadline_at, r.cancel_requested_at, r.parent_run, r.forked_from, r.from_step,
       NULL::bytea AS context, coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd
FROM flujo_runs r
JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.status IN ('queued', 'running')
              AND EXISTS (SELECT 1 FROM flujo_attempts q WHERE q.run_id = r.id AND q.status = 'paused')
              AND NOT EXISTS (SELECT 1 FROM flujo_attempts q WHERE q.run_id = r.id AND q.status IN ('ready', 'queued', 'running'))
            THEN 'paused' ELSE r.status END AS status
) v
LEFT JOIN LATERAL (
    WITH RECURSIVE kin (id) AS (SELECT r.id UNION ALL SELECT c.id FROM kin JOIN flujo_runs c ON c.parent_run = kin.id)
    SELECT sum(x.input_tokens + x.output_tokens) AS tokens, sum(x.cost_usd) AS cost_usd
    FROM kin JOIN flujo_spends x ON x.run_id = kin.id
) t ON true
WHERE (%(prefix)s::text IS NULL OR starts_with(r.id, %(prefix)s::text))
  AND (%(status)s::text IS NULL OR v.status = %(status)s::text)
  AND (%(pipeline)s::text IS NULL OR r.name = %(pipeline)s::text OR r.reference = %(pipeline)s::text)
  AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
  AND (%(metadata)s::jsonb IS NULL OR r.metadata @> %(metadata)s::jsonb)
  AND (%(parent)s::text IS NULL OR r.parent_run = %(parent)s::text OR (%(parent)s::text = '' AND r.parent_run IS NULL))
ORDER BY r.created_at DESC, r.id DESC
LIMIT %(limit)s::int OFFSET %(offset)s::int;
