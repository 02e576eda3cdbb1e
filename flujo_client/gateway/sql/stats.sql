-- The outcomes of the runs that match; the window is found by the index on the time of their enqueue. A run counts as paused as in runs.sql.
WITH RECURSIVE span AS (SELECT now() AS until, coalesce(%(since)s::timestamptz, now() - make_interval(secs => %(within_s)s::float8)) AS since),
-- Runs with a question open, and those that wait for them: only these have to be checked for being paused.
asked (id) AS (
    SELECT a.run_id FROM flujo_attempts a WHERE a.question IS NOT NULL AND a.ended_at IS NULL AND a.status = 'paused'
    UNION SELECT c.parent_run FROM asked JOIN flujo_runs c ON c.id = asked.id WHERE c.parent_run IS NOT NULL AND c.parent_address IS NOT NULL
),
looked AS MATERIALIZED (
    SELECT r.id, r.name, r.retried_as IS NOT NULL AND r.status IN ('failed', 'cancelled', 'expired') AS is_retried, extract(epoch FROM r.ended_at - r.created_at)::float8 AS took_s,
           CASE WHEN r.status IN ('queued', 'running') AND r.id IN (SELECT id FROM asked) AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status
    FROM flujo_runs r
    WHERE
-- include matching
),
took AS (SELECT percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY took_s) AS s FROM looked),
spent AS (
    SELECT coalesce(sum(x.input_tokens + x.output_tokens), 0)::bigint AS tokens, coalesce(sum(x.cost_usd), 0)::float8 AS cost_usd
    FROM looked l JOIN flujo_spends x ON x.run_id = l.id
),
tried AS (
    SELECT l.name AS pipeline, a.step, count(*) AS attempts, count(*) FILTER (WHERE a.status = 'failed' AND coalesce(a.reason, '') NOT IN ('paused', 'waiting')) AS failed
    FROM looked l JOIN flujo_attempts a ON a.run_id = l.id GROUP BY l.id, l.name, a.step
),
failing AS (
    SELECT pipeline, step, sum(failed)::bigint AS failed, sum(attempts)::bigint AS attempts, count(*) FILTER (WHERE failed > 0) AS runs
    FROM tried GROUP BY pipeline, step
    HAVING sum(failed) > 0
    ORDER BY failed DESC, runs DESC, pipeline, step LIMIT %(limit)s::int
)
SELECT span.since, span.until, took.s[1] AS p50_s, took.s[2] AS p95_s, spent.tokens, spent.cost_usd,
       (SELECT coalesce(jsonb_object_agg(g.status, g.count), '{}') FROM (SELECT status, count(*) AS count FROM looked GROUP BY status) g) AS by_status,
       (SELECT count(*) FROM looked WHERE is_retried) AS retried, (SELECT coalesce(jsonb_agg(f), '[]') FROM failing f) AS failing
FROM span, took, spent;
