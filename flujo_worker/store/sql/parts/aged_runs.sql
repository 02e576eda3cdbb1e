rule AS (
    SELECT r.status, r.name, r.older_s
    FROM unnest(%(statuses)s::text[], %(pipelines)s::text[], %(ages)s::float8[]) AS r (status, name, older_s)
),
kept AS MATERIALIZED (
    -- Runs that are not exported yet are kept for a while (ADR 55).
    SELECT DISTINCT ON (p.name, r.status) p.name, r.status,
           CASE WHEN r.older_s IS NOT NULL THEN now() - greatest(
               make_interval(secs => r.older_s), least(coalesce(now() - x.exported, interval '0'), make_interval(secs => r.older_s + %(waits_s)s::float8))) END AS since
    FROM (SELECT DISTINCT name FROM flujo_pipelines) p JOIN rule r ON r.name = p.name OR r.name IS NULL
    CROSS JOIN (SELECT min((v.value ->> 0)::timestamptz) AS exported FROM flujo_exports e, jsonb_each(e.positions) v) x
    ORDER BY p.name, r.status, r.name NULLS LAST
),
aged AS MATERIALIZED (
    SELECT r.id FROM kept k CROSS JOIN LATERAL (
        SELECT r.id FROM flujo_runs r
        WHERE r.name = k.name AND r.status = k.status AND r.ended_at < k.since AND r.parent_run IS NULL
          AND NOT EXISTS (
              SELECT 1 FROM flujo_family(r.id) AS f (id) JOIN flujo_runs c ON c.id = f.id
              WHERE c.ended_at IS NULL OR c.ended_at >= k.since OFFSET 0
          )
        ORDER BY r.ended_at LIMIT %(limit)s::int
    ) r
    LIMIT %(limit)s::int
)
