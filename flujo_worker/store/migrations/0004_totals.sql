-- Counters for metrics that retention does not take back. Workers of schema 3 do not add to them; the first of schema 4 catches up.
-- index: flujo_attempts_recent ON flujo_attempts (ended_at) WHERE ended_at IS NOT NULL

ALTER TABLE flujo_sweeps ADD COLUMN tallied_to timestamptz NOT NULL DEFAULT now();

-- What has ended, counted before retention deletes it: the sweeper adds what ended since `flujo_sweeps.tallied_to` (`tally.sql`).
CREATE TABLE flujo_tallies (
    name   text NOT NULL,
    labels jsonb NOT NULL,
    value  double precision NOT NULL,
    PRIMARY KEY (name, labels)
) WITH (fillfactor = 50);

-- When an attempt could begin. The client that records one sends it too, so the sweeper leaves it alone for a second: that is no wait.
CREATE FUNCTION flujo_due(created timestamptz, available timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN available <= created + interval '2 s' OR NOT isfinite(available) THEN created ELSE available END
$$;

-- What ended in a span of time, as counters by name and labels. The buckets of a histogram are not cumulative. Pipelines after the first 200
-- are counted as `other`: what users name has no end, and a series for each would have none either.
CREATE FUNCTION flujo_counted(since timestamptz, until timestamptz) RETURNS TABLE (name text, labels jsonb, value double precision)
LANGUAGE sql STABLE AS $$
WITH named AS MATERIALIZED (
    SELECT p.name FROM flujo_pipelines p GROUP BY p.name ORDER BY min(p.created_at), p.name LIMIT 200
),
ended AS MATERIALIZED (
    SELECT a.key, CASE WHEN a.name IN (SELECT n.name FROM named n) THEN a.name ELSE 'other' END AS pipeline, a.queue, a.status, a.number, a.losses, a.latency_s, a.metadata,
           CASE WHEN a.status = 'failed' THEN coalesce(left(a.error ->> 'type_name', 100), '') END AS exception,
           CASE WHEN a.started_at IS NOT NULL THEN flujo_seconds(flujo_due(a.created_at, a.available_at), a.started_at) END AS waited_s
    FROM (
        SELECT a.*, (SELECT r.name FROM flujo_runs r WHERE r.id = a.run_id) AS name FROM flujo_attempts a
        WHERE a.ended_at >= since AND a.ended_at < until AND a.kind = 'step'
    ) a
),
bounds AS (
    SELECT ARRAY[0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200]::float8[] AS le
),
durations AS (
    SELECT e.pipeline, width_bucket(e.latency_s, b.le) AS bucket, count(*) AS count, sum(e.latency_s) AS s
    FROM ended e, bounds b WHERE e.latency_s IS NOT NULL GROUP BY 1, 2
),
waits AS (
    SELECT e.queue, width_bucket(e.waited_s, b.le) AS bucket, count(*) AS count, sum(e.waited_s) AS s
    FROM ended e, bounds b WHERE e.waited_s IS NOT NULL GROUP BY 1, 2
),
spent AS (
    SELECT e.pipeline, coalesce(s.model, 'several') AS model, sum(s.input_tokens) AS input, sum(s.output_tokens) AS output,
           sum(s.requests) AS requests, sum(s.cost_usd) AS cost
    FROM ended e CROSS JOIN LATERAL (SELECT x.* FROM flujo_spends x WHERE x.key = e.key OFFSET 0) s GROUP BY 1, 2
),
counts (name, labels, value) AS (
    SELECT 'flujo_attempts_total', jsonb_build_object('pipeline', e.pipeline, 'queue_name', e.queue, 'outcome', e.status), count(*)::float8
    FROM ended e GROUP BY e.pipeline, e.queue, e.status
    UNION ALL
    SELECT 'flujo_attempt_failures_total', jsonb_build_object('pipeline', e.pipeline, 'exception', e.exception), count(*)
    FROM ended e WHERE e.exception IS NOT NULL GROUP BY e.pipeline, e.exception
    UNION ALL
    SELECT v.name, jsonb_build_object('pipeline', t.pipeline), v.value
    FROM (
        SELECT e.pipeline, count(*) FILTER (WHERE e.number > 1) AS retries, sum(e.losses) AS losses,
               coalesce(sum(flujo_number(e.metadata -> 'aros.coercion.failed')), 0) AS refused
        FROM ended e GROUP BY e.pipeline
    ) t CROSS JOIN LATERAL (VALUES
        ('flujo_retries_total', t.retries), ('flujo_leases_lost_total', t.losses), ('flujo_outputs_refused_total', t.refused)
    ) v (name, value)
    UNION ALL
    SELECT 'flujo_output_repairs_total', jsonb_build_object('pipeline', e.pipeline, 'stage', substr(m.key, length('aros.coercion.stage.') + 1)), sum(flujo_number(m.value))
    FROM ended e CROSS JOIN LATERAL jsonb_each(e.metadata) m
    WHERE e.metadata ? 'aros.coercion.total' AND starts_with(m.key, 'aros.coercion.stage.')
    GROUP BY e.pipeline, m.key
    UNION ALL
    SELECT 'flujo_attempt_duration_seconds_bucket', jsonb_build_object('pipeline', d.pipeline, 'le', coalesce(b.le[d.bucket + 1]::text, '+Inf')), d.count
    FROM durations d, bounds b
    UNION ALL
    SELECT 'flujo_attempt_duration_seconds_sum', jsonb_build_object('pipeline', d.pipeline), sum(d.s) FROM durations d GROUP BY d.pipeline
    UNION ALL
    SELECT 'flujo_schedule_to_start_seconds_bucket', jsonb_build_object('queue_name', w.queue, 'le', coalesce(b.le[w.bucket + 1]::text, '+Inf')), w.count
    FROM waits w, bounds b
    UNION ALL
    SELECT 'flujo_schedule_to_start_seconds_sum', jsonb_build_object('queue_name', w.queue), sum(w.s) FROM waits w GROUP BY w.queue
    UNION ALL
    SELECT v.name, jsonb_build_object('pipeline', s.pipeline, 'model', s.model) || v.labels, v.value
    FROM spent s CROSS JOIN LATERAL (VALUES
        ('flujo_tokens_total', '{"direction": "input"}'::jsonb, s.input), ('flujo_tokens_total', '{"direction": "output"}', s.output),
        ('flujo_model_requests_total', '{}', s.requests), ('flujo_cost_dollars_total', '{}', s.cost)
    ) v (name, labels, value)
    UNION ALL
    -- Child runs are left out: their parents end with them. One look-up in the index for each pipeline and status.
    SELECT 'flujo_runs_total', jsonb_build_object('pipeline', coalesce(n.name, 'other'), 'outcome', s.status), sum(c.count)
    FROM (SELECT DISTINCT p.name FROM flujo_pipelines p) p
    CROSS JOIN (VALUES ('succeeded'), ('failed'), ('cancelled'), ('expired')) s (status)
    CROSS JOIN LATERAL (
        SELECT count(*) AS count FROM flujo_runs r
        WHERE r.name = p.name AND r.status = s.status AND r.ended_at >= since AND r.ended_at < until AND r.parent_run IS NULL
    ) c
    LEFT JOIN named n ON n.name = p.name
    GROUP BY n.name, s.status
)
-- Prometheus sees no increase in a series that begins above 0, so those that alerts ask for begin at 0.
SELECT c.name, c.labels, c.value FROM counts c
WHERE c.value > 0 OR c.name IN ('flujo_runs_total', 'flujo_retries_total', 'flujo_leases_lost_total', 'flujo_outputs_refused_total')
$$;

-- Counters of all that has ended since the schema had them. They never decrease: what is not in `flujo_tallies` yet is counted from rows.
CREATE VIEW flujo_totals (name, labels, value) AS
SELECT t.name, t.labels, sum(t.value)
FROM (
    SELECT name, labels, value FROM flujo_tallies
    UNION ALL
    SELECT c.name, c.labels, c.value FROM flujo_sweeps s CROSS JOIN LATERAL flujo_counted(s.tallied_to, 'infinity') c
) t GROUP BY t.name, t.labels;

-- Work that has not ended, by queue and by what it waits for: `running` and `queued` (a message is in the broker), `unsent` (it is due and was
-- not published yet), `delay` (a retry, or a time), `breaker`, `rate` or `limit`, `lane` (of a fan-out), `admission` (of its run), `parked`
-- (its run), `approval` (a person).
CREATE VIEW flujo_waiting (queue, reason, count, oldest_s) AS
SELECT w.queue, w.reason, count(*), greatest(0, extract(epoch FROM now() - min(w.since)))::float8
FROM (
    SELECT a.queue,
           CASE WHEN a.status = 'running' THEN 'running' WHEN a.status = 'paused' THEN 'approval'
                WHEN a.available_at = 'infinity' THEN 'lane' WHEN a.available_at > now() + interval '50 years' THEN 'admission'
                WHEN r.status = 'parked' THEN 'parked' WHEN a.status = 'queued' THEN 'queued'
                WHEN a.waits_for IS NOT NULL THEN split_part(a.waits_for, ' ', 1)
                WHEN d.due > now() THEN 'delay' ELSE 'unsent' END AS reason,
           CASE WHEN a.status = 'running' THEN a.started_at WHEN a.status = 'ready' AND a.waits_since IS NOT NULL THEN a.waits_since
                WHEN a.status = 'paused' OR d.due > now() THEN a.created_at ELSE d.due END AS since
    FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id CROSS JOIN LATERAL (SELECT flujo_due(a.created_at, a.available_at) AS due) d
    WHERE a.ended_at IS NULL
) w GROUP BY w.queue, w.reason;

-- The size of each table with its indexes, in bytes; a table's partitions are part of it.
CREATE VIEW flujo_sizes (name, bytes) AS
SELECT coalesce(p.relname, c.relname)::text, sum(pg_total_relation_size(c.oid))::bigint
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relkind = 'r' AND c.relnamespace = (SELECT o.relnamespace FROM pg_class o WHERE o.oid = 'flujo_runs'::regclass) AND starts_with(c.relname, 'flujo_')
GROUP BY 1;
