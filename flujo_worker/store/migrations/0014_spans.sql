-- The trace for readers of SQL and for exporters: one row for each span, and one for each run. Views and functions only; code from before
-- knows none of them. Spans stand where `RunHandle.trace()` shows them, under ids made of their places, so that a delivery that is
-- repeated overwrites its span and adds none (M-292). Asked with `WHERE run_id = …` they look at that run's rows alone.

-- The node of a run at which work stands: `<sequence>/<step>`.
CREATE FUNCTION flujo_node(address text, step text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN address = '' THEN step ELSE address || '/' || step END
$$;

-- The span at an address; a run's root scope is the run itself.
CREATE FUNCTION flujo_span(run text, root text, address text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN address IS NULL OR address = root THEN run ELSE run || ':' || address END
$$;

CREATE FUNCTION flujo_seconds(began timestamptz, ended timestamptz) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ended IS NOT NULL THEN greatest(0, extract(epoch FROM ended - began))::float8 END
$$;

CREATE VIEW flujo_spans (run_id, span_id, parent_span_id, name, kind, status, started_at, ended_at, duration_s, attributes) AS
-- runs; a child run's parent is the container of the other run that it was begun at
SELECT r.id, r.id,
       CASE WHEN r.parent_run IS NOT NULL THEN flujo_span(r.parent_run, '', coalesce(r.parent_address, (
           SELECT s.address FROM flujo_scopes s WHERE s.run_id = r.parent_run AND s.metadata ->> 'child_run' = r.id LIMIT 1))) END,
       r.name, 'run', v.status, r.created_at, r.ended_at, flujo_seconds(r.created_at, r.ended_at),
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.run_id', r.id,
           'flujo.pipeline.name', r.name,
           'flujo.pipeline.version', p.version,
           'flujo.budget.initial_cost_usd', r.limits #> '{limits,total_cost_usd_limit}',
           'flujo.budget.initial_tokens', r.limits #> '{limits,total_tokens_limit}',
           'flujo.is_background', CASE WHEN r.parent_run IS NOT NULL AND r.parent_address IS NULL THEN true END,
           'success', CASE WHEN r.ended_at IS NOT NULL THEN r.status = 'succeeded' END,
           'feedback', coalesce(r.error ->> 'feedback', r.reason)))
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
CROSS JOIN LATERAL (SELECT CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status) v
UNION ALL
-- containers, and their children: iterations, branches, paths; what a run's end left open ended with it
SELECT s.run_id, flujo_span(s.run_id, r.root, s.address), flujo_span(s.run_id, r.root, s.parent), coalesce(nullif(s.name, ''), s.address),
       CASE WHEN s.kind <> 'sequence' THEN s.kind ELSE
           CASE (SELECT b.kind FROM flujo_scopes b WHERE b.run_id = s.run_id AND b.address = s.parent)
               WHEN 'loop' THEN 'iteration' WHEN 'map' THEN 'item' WHEN 'parallel' THEN 'branch' WHEN 'router' THEN 'branch'
               WHEN 'conditional' THEN 'path' WHEN 'nested' THEN 'body' WHEN 'machine' THEN 'state' WHEN 'fallback' THEN 'body'
               WHEN 'cache' THEN 'body' ELSE 'child' END END,
       CASE WHEN s.status <> 'open' THEN s.status WHEN r.ended_at IS NULL THEN 'running' ELSE r.status END,
       b.at, s.closed_at, flujo_seconds(b.at, s.closed_at),
       jsonb_strip_nulls(s.metadata - 'feedback' - 'cache_hit' - 'is_background' || jsonb_build_object(
           'flujo.step.id', s.address,
           'flujo.step.type', CASE WHEN s.kind <> 'sequence' THEN s.kind END,
           'flujo.step.policy', CASE WHEN s.kind <> 'sequence' THEN s.kind END,
           'flujo.cache.hit', s.metadata -> 'cache_hit',
           'flujo.is_background', s.metadata -> 'is_background',
           'success', CASE WHEN s.status <> 'open' THEN s.status = 'succeeded' END,
           'latency_s', flujo_seconds(b.at, s.closed_at),
           'feedback', coalesce(s.error -> 'feedback', s.metadata -> 'feedback')))
FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id
CROSS JOIN LATERAL (
    SELECT CASE WHEN s.kind <> 'router' THEN s.opened_at ELSE least(s.opened_at, (
        SELECT min(a.created_at) FROM flujo_attempts a
        WHERE a.run_id = s.run_id AND a.kind IN ('step', 'resume') AND flujo_node(a.address, a.step) = s.address)) END AS at
) b
WHERE s.address <> r.root
UNION ALL
-- steps, and containers that are about to begin, which have no scope yet
SELECT n.run_id, n.run_id || ':' || n.node, flujo_span(n.run_id, r.root, n.address), n.step, n.kind, n.status, n.began, n.ended,
       CASE WHEN n.kind = 'step' THEN flujo_seconds(n.began, n.ended) END,
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.step.id', n.node,
           'flujo.step.type', n.type,
           'flujo.step.policy', n.policy,
           'flujo.attempt_number', n.number,
           'success', CASE WHEN n.kind = 'step' AND n.ended IS NOT NULL THEN n.status = 'succeeded' END,
           'latency_s', n.latency_s,
           'feedback', CASE WHEN n.status <> 'succeeded' THEN n.feedback END))
FROM (
    SELECT a.run_id, a.address, a.step, flujo_node(a.address, a.step) AS node,
           CASE WHEN count(*) FILTER (WHERE w.is_try) > 0 THEN 'step' ELSE 'start' END AS kind,
           CASE WHEN bool_and(a.kind = 'resume') THEN 'human' WHEN count(*) FILTER (WHERE w.is_try) > 0 THEN 'step' END AS type,
           (array_agg(a.kind ORDER BY a.created_at DESC, a.number DESC) FILTER (WHERE w.is_try))[1] AS policy,
           max(a.number) FILTER (WHERE w.is_try) AS number,
           (array_agg(a.status ORDER BY w.is_try DESC, a.created_at DESC, a.number DESC))[1] AS status,
           (array_agg(a.created_at ORDER BY w.is_try DESC, a.created_at, a.number))[1] AS began,
           (array_agg(a.ended_at ORDER BY w.is_try DESC, a.created_at DESC, a.number DESC))[1] AS ended,
           (array_agg(coalesce(a.error ->> 'feedback', a.reason) ORDER BY w.is_try DESC, a.created_at DESC, a.number DESC))[1] AS feedback,
           sum(a.latency_s) FILTER (WHERE w.is_try) AS latency_s
    FROM flujo_attempts a
    CROSS JOIN LATERAL (SELECT a.kind IN ('step', 'resume') AS is_try) w
    WHERE NOT EXISTS (SELECT FROM flujo_scopes s WHERE s.run_id = a.run_id AND s.kind <> 'sequence' AND s.address = a.address)
      AND NOT EXISTS (
          SELECT FROM flujo_scopes s WHERE s.run_id = a.run_id AND s.kind <> 'sequence' AND s.address = flujo_node(a.address, a.step))
    GROUP BY a.run_id, a.address, a.step
) n JOIN flujo_runs r ON r.id = n.run_id
UNION ALL
-- attempts at steps, and the questions of human steps
SELECT a.run_id, a.key, a.run_id || ':' || flujo_node(a.address, a.step), 'attempt ' || a.number, 'attempt', a.status, b.at, a.ended_at,
       CASE WHEN a.ended_at IS NOT NULL THEN coalesce(a.latency_s, 0) END,
       jsonb_strip_nulls(coalesce(a.metadata, '{}') || jsonb_build_object(
           'flujo.step.id', flujo_node(a.address, a.step),
           'flujo.step.policy', a.kind,
           'flujo.attempt_number', a.number,
           'flujo.worker', a.worker,
           'flujo.deliveries', nullif(a.fence, 0),
           'flujo.budget.quota_before_usd', b.quota_before_usd,
           'flujo.budget.quota_before_tokens', b.quota_before_tokens,
           'flujo.budget.estimate_cost_usd', b.estimate_cost_usd,
           'flujo.budget.estimate_tokens', b.estimate_tokens,
           'flujo.budget.actual_cost_usd', t.cost_usd,
           'flujo.budget.actual_tokens', t.tokens,
           'success', CASE WHEN a.ended_at IS NOT NULL THEN a.status = 'succeeded' END,
           'latency_s', a.latency_s,
           'feedback', coalesce(a.error ->> 'feedback', a.reason)))
FROM flujo_attempts a
LEFT JOIN LATERAL (
    SELECT sum(x.input_tokens + x.output_tokens) AS tokens, sum(x.cost_usd) AS cost_usd FROM flujo_spends x WHERE x.key = a.key
) t ON true
LEFT JOIN LATERAL (
    SELECT coalesce(a.started_at, a.created_at) AS at, max(v.usd)::float8 AS estimate_cost_usd, max(v.tokens) AS estimate_tokens,
           min(v.before_usd)::float8 AS quota_before_usd, min(v.before_tokens) AS quota_before_tokens
    FROM flujo_reservations v WHERE v.key = a.key
) b ON true
WHERE a.kind IN ('step', 'resume');

-- What takes a look at other rows stands in the list of columns, where a LIMIT spares it.
CREATE VIEW flujo_trace AS
SELECT r.id AS run_id, r.parent_run AS parent_run_id, r.name, r.reference, p.version,
       CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status,
       r.reason, r.created_at AS started_at, r.ended_at, flujo_seconds(r.created_at, r.ended_at) AS duration_s,
       (SELECT coalesce(sum(x.input_tokens + x.output_tokens), 0)::bigint FROM flujo_kin(r.id) k JOIN flujo_spends x ON x.run_id = k) AS tokens,
       (SELECT coalesce(sum(x.cost_usd), 0)::float8 FROM flujo_kin(r.id) k JOIN flujo_spends x ON x.run_id = k) AS cost_usd,
       (SELECT count(*) FROM flujo_spans s WHERE s.run_id = r.id) AS spans,
       r.tenant, r.trace_parent,
       (SELECT s.attributes FROM flujo_spans s WHERE s.run_id = r.id AND s.kind = 'run') AS attributes
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint;
