-- The examined runs, and the counters of AROS in their attempts, by place and time. With a limit, the newest count. The window and its
-- parts are closed on the left: a run on an edge belongs to the later part, and one at the window's end to the last.
WITH span AS (SELECT now() AS at, now() - make_interval(secs => %(hours)s::float8 * 3600) AS since),
looked AS MATERIALIZED (
    SELECT r.id, r.name, extract(epoch FROM r.started_at) AS started FROM flujo_runs r
    WHERE r.started_at >= coalesce(now() - make_interval(secs => %(hours)s::float8 * 3600), '-infinity') AND r.started_at <= now()
      AND (%(pipeline)s::text IS NULL OR r.name = %(pipeline)s::text OR r.reference = %(pipeline)s::text)
    ORDER BY r.started_at DESC, r.id DESC LIMIT %(limit)s::bigint
),
placed AS MATERIALIZED (
    SELECT l.id, l.name,
           CASE WHEN s.since IS NOT NULL THEN least(width_bucket(l.started, extract(epoch FROM s.since), extract(epoch FROM s.at), 2), 2) - 1 END AS half,
           CASE WHEN %(buckets)s::int IS NOT NULL THEN
               least(width_bucket(l.started, extract(epoch FROM s.since), extract(epoch FROM s.at), %(buckets)s::int), %(buckets)s::int) - 1
           END AS bucket
    FROM looked l, span s
),
-- Many attempts of a step are equal, so their counters are read once for each kind.
kinds AS MATERIALIZED (
    SELECT p.name, p.half, p.bucket, a.step, a.metadata, count(*) AS times FROM placed p JOIN flujo_attempts a ON a.run_id = p.id
    WHERE a.metadata IS NOT NULL AND (%(step)s::text IS NULL OR a.step = %(step)s::text)
      AND (%(model)s::text IS NULL OR a.metadata ->> 'aros.model_id' = %(model)s::text)
    GROUP BY p.name, p.half, p.bucket, a.step, a.metadata
),
counters AS (
    SELECT k.*, f.key, f.value::bigint AS number FROM kinds k CROSS JOIN LATERAL jsonb_each(k.metadata) AS f (key, value)
    WHERE starts_with(f.key, 'aros.') AND jsonb_typeof(f.value) = 'number'
    UNION ALL SELECT k.*, f.key || '.' || t.name, 1
    FROM kinds k CROSS JOIN LATERAL (VALUES ('aros.coercion.transforms'), ('aros.shadow.coercion.transforms')) AS f (key)
    CROSS JOIN LATERAL jsonb_array_elements_text(coalesce(k.metadata -> f.key, '[]')) AS t (name)
    UNION ALL SELECT k.*, 'attempts', 1
    FROM kinds k WHERE EXISTS (SELECT 1 FROM jsonb_object_keys(k.metadata) AS f (key) WHERE starts_with(f.key, 'aros.'))
)
SELECT s.at, s.since,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(g.half, g.bucket, g.name, g.runs)), '[]')
        FROM (SELECT half, bucket, name, count(*) AS runs FROM placed GROUP BY half, bucket, name) g) AS runs,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(g.half, g.bucket, g.name, g.step, g.agent, g.model, g.key, g.number)), '[]')
        FROM (
            SELECT half, bucket, name, step, metadata ->> 'aros.agent_id' AS agent, metadata ->> 'aros.model_id' AS model, key,
                   sum(number * times)::bigint AS number
            FROM counters GROUP BY half, bucket, name, step, metadata ->> 'aros.agent_id', metadata ->> 'aros.model_id', key
        ) g) AS counts
FROM span s;
