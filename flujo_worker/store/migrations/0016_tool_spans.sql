-- Spans of agents that were called as tools. They are part of an attempt and have no rows: they are derived from the attempt's events.
-- Views and functions only; code from before reads none of them.

-- A number in a log line, or nothing: a line under one of our names may contain anything.
CREATE FUNCTION flujo_number(told jsonb) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(told) = 'number' THEN told::float8 END
$$;

-- The spans as they were, under a name of their own; `flujo_spans` itself stays, with its grants, and so do views of yours over it.
DO $$ BEGIN
    EXECUTE 'CREATE VIEW flujo_row_spans AS ' || pg_get_viewdef('flujo_spans'::regclass);
END $$;

CREATE VIEW flujo_tool_spans (run_id, span_id, parent_span_id, name, kind, status, started_at, ended_at, duration_s, attributes) AS
SELECT c.run_id, c.attempt || '#' || c.call, c.attempt || coalesce('#' || c.within, ''), c.tool, 'tool', o.status, o.began, o.ended, o.took_s,
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.step.id', flujo_node(a.address, a.step),
           'flujo.attempt_number', a.number,
           'flujo.agent', c.agent,
           'flujo.budget.actual_cost_usd', c.cost_usd,
           'flujo.budget.actual_tokens', c.tokens,
           'success', CASE WHEN o.status <> 'running' THEN o.status = 'succeeded' END,
           'latency_s', o.took_s,
           'feedback', coalesce(c.error, c.refusal)))
FROM (
    SELECT e.run_id, e.attempt, e.data ->> 'tool_call' AS call,
           max(e.data ->> 'within') FILTER (WHERE e.name = 'agent_tool.called') AS within,
           max(e.data ->> 'tool') FILTER (WHERE e.name = 'agent_tool.called') AS tool,
           max(e.data ->> 'agent') FILTER (WHERE e.name = 'agent_tool.called') AS agent,
           min(e.at) FILTER (WHERE e.name = 'agent_tool.called') AS began,
           max(e.at) FILTER (WHERE e.name IN ('agent_tool.returned', 'agent_tool.raised')) AS ended,
           max(flujo_number(e.data -> 'latency_ms')) FILTER (WHERE e.name IN ('agent_tool.returned', 'agent_tool.raised')) / 1000 AS took_s,
           max(e.data ->> 'error') FILTER (WHERE e.name = 'agent_tool.raised') AS error,
           max(e.data ->> 'message_preview') FILTER (WHERE e.name IN ('agent_tool.input_invalid', 'agent_tool.output_invalid')) AS refusal,
           sum(flujo_number(e.data -> 'input_tokens') + flujo_number(e.data -> 'output_tokens')) FILTER (WHERE e.name = 'agent.usage') AS tokens,
           sum(flujo_number(e.data -> 'cost_usd')) FILTER (WHERE e.name = 'agent.usage') AS cost_usd
    FROM flujo_events e
    WHERE e.data ? 'tool_call' AND (e.name LIKE 'agent\_tool.%' OR e.name = 'agent.usage')
    GROUP BY e.run_id, e.attempt, e.data ->> 'tool_call'
) c
JOIN flujo_attempts a ON a.key = c.attempt
-- Events have the worker's clock, attempts the database's: a call begins no earlier than its attempt.
CROSS JOIN LATERAL (
    SELECT greatest(c.began, a.started_at, a.created_at) AS began,
           CASE WHEN c.ended IS NOT NULL THEN greatest(c.ended, a.started_at, a.created_at) END AS ended,
           CASE WHEN c.ended IS NOT NULL THEN greatest(0, coalesce(c.took_s, 0)) END AS took_s,
           CASE WHEN c.ended IS NULL THEN 'running' WHEN coalesce(c.error, c.refusal) IS NULL THEN 'succeeded' ELSE 'failed' END AS status
) o
WHERE c.began IS NOT NULL AND c.tool IS NOT NULL;

CREATE OR REPLACE VIEW flujo_spans AS SELECT * FROM flujo_row_spans UNION ALL SELECT * FROM flujo_tool_spans;
