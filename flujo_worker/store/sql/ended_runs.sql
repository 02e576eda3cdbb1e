SELECT r.ended_at AS ended, r.id AS key, r.id AS run, r.trace_parent, r.name AS pipeline, r.tenant, r.created_at AS began, r.status, r.reason,
       r.error ->> 'feedback' AS feedback, r.error ->> 'type_name' AS error, r.parent_run, r.root, r.parent_run IS NOT NULL AND r.parent_address IS NULL AS is_background,
       p.version, l.links
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_agg(jsonb_build_array(w.word, o.id, o.trace_parent)), '[]') AS links
    FROM (VALUES ('retry_of', r.retry_of), ('forked_from', r.forked_from), ('parent', r.parent_run)) AS w (word, id) JOIN flujo_runs o ON o.id = w.id
) l
WHERE r.status IN ('succeeded', 'failed', 'cancelled', 'expired') AND r.ended_at >= %(since)s::timestamptz AND r.ended_at < %(until)s::timestamptz AND (r.ended_at, r.id) > (%(since)s::timestamptz, %(after)s::text)
ORDER BY r.ended_at, r.id LIMIT %(limit)s::int;
