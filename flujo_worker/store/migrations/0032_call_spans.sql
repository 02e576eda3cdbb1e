-- Spans of the model calls beside the agent's: of prechecks, processors, plugins and validators. They are part of an attempt and have no rows: one
-- event reports each when it ends. Views only; code from before reads none of them.

-- The number counts an attempt's calls by one name, so a delivery that is repeated has the same spans.
CREATE VIEW flujo_call_spans (run_id, span_id, parent_span_id, name, kind, status, started_at, ended_at, duration_s, attributes) AS
SELECT c.run_id, c.attempt || '#' || c.call || ':' || c.place, c.attempt, c.call, 'call', 'succeeded', o.at, o.at, NULL::double precision,
       jsonb_strip_nulls(jsonb_build_object(
           'flujo.step.id', flujo_node(a.address, a.step),
           'flujo.attempt_number', a.number,
           'flujo.budget.actual_cost_usd', flujo_number(c.data -> 'cost_usd'),
           'flujo.budget.actual_tokens', coalesce(flujo_number(c.data -> 'input_tokens'), 0) + coalesce(flujo_number(c.data -> 'output_tokens'), 0),
           'success', true))
FROM (
    SELECT e.run_id, e.attempt, e.at, e.data, e.data ->> 'call' AS call,
           row_number() OVER (PARTITION BY e.run_id, e.attempt, e.data ->> 'call' ORDER BY e.id) AS place
    FROM flujo_events e
    WHERE e.name = 'agent.usage' AND e.data ->> 'call' <> 'agent' AND NOT e.data ? 'tool_call'
) c
JOIN flujo_attempts a ON a.key = c.attempt
-- Events have the worker's clock, attempts the database's: a call ends no earlier than its attempt begins.
CROSS JOIN LATERAL (SELECT greatest(c.at, a.started_at, a.created_at) AS at) o;

CREATE OR REPLACE VIEW flujo_spans AS
SELECT * FROM flujo_row_spans UNION ALL SELECT * FROM flujo_tool_spans UNION ALL SELECT * FROM flujo_call_spans;
