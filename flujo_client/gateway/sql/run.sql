-- One run. Totals are summed here, never stored per step; they include child runs at any depth. A background run, which has no place in its
-- parent, spends from its own budget and is in no other run's totals.
SELECT r.id, r.reference, r.fingerprint, r.name, p.version, v.status, r.reason, r.error, r.input, r.output, r.tenant, r.metadata,
       r.created_at, r.started_at, r.ended_at, r.deadline_at, r.cancel_requested_at, r.parent_run, r.limits -> 'limits' AS limits, r.aros, r.settings,
       r.parent_run IS NOT NULL AND r.parent_address IS NULL AS is_background, r.retry_of, r.retries, r.forked_from, r.from_step, r.retried_as,
       r.parked, r.failed_key, r.replaced_by, CASE WHEN r.status = 'queued' THEN flujo_waits_for(r.id) END AS waits_for, s.context,
       coalesce(t.tokens, 0)::bigint AS tokens, coalesce(t.cost_usd, 0)::float8 AS cost_usd
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
CROSS JOIN LATERAL (SELECT CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status) v
LEFT JOIN flujo_scopes s ON s.run_id = r.id AND s.address = r.root
LEFT JOIN LATERAL (
    SELECT sum(x.input_tokens + x.output_tokens) AS tokens, sum(x.cost_usd) AS cost_usd
    FROM flujo_kin(r.id) k JOIN flujo_spends x ON x.run_id = k
) t ON true
WHERE r.id = %(run)s;
