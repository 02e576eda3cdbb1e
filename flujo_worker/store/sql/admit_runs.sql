-- Let runs pass their gates: their first attempts become due. Others wait at another gate, with places in those that decide at once. Drop stopped runs.
WITH admitted AS (DELETE FROM flujo_waiting_runs WHERE run_id = ANY(%(admitted)s::text[]) RETURNING run_id, key),
gone AS (DELETE FROM flujo_waiting_runs WHERE run_id = ANY(%(gone)s::text[])),
moved AS (
    UPDATE flujo_waiting_runs w SET gate = m.gate, flow = m.flow, most = m.most, not_before = NULL
    FROM unnest(%(moved)s::text[], %(to_gate)s::text[], %(to_flow)s::text[], %(to_most)s::int[]) AS m (run, gate, flow, most) WHERE w.run_id = m.run
),
placed AS (
    INSERT INTO flujo_gate_places (gate, run_id, is_window, until)
    SELECT g.name, r.id, g.is_window, CASE WHEN g.period_s IS NOT NULL THEN 'infinity'::timestamptz END  -- see begin_periods.sql
    FROM admitted a JOIN flujo_runs r ON r.id = a.run_id
    CROSS JOIN LATERAL jsonb_to_recordset(r.gates) AS g (name text, most int, period_s float8, is_window bool)
    WHERE g.most IS NOT NULL
    UNION ALL SELECT k.gate, k.run, false, NULL FROM unnest(%(kept)s::text[], %(kept_gate)s::text[]) AS k (run, gate)
    ON CONFLICT DO NOTHING
),
turned AS (
    UPDATE flujo_gates g SET turns = t.turns::jsonb, touched_at = now()
    FROM unnest(%(turned)s::text[], %(turns)s::text[]) AS t (name, turns) WHERE g.name = t.name
),
story AS (
    INSERT INTO flujo_events (run_id, name, data)
    SELECT r.id, 'run.admitted', jsonb_build_object('waited_s', round(extract(epoch FROM now() - r.created_at), 3))
    FROM admitted a JOIN flujo_runs r ON r.id = a.run_id
)
UPDATE flujo_attempts t SET available_at = now() + make_interval(secs => %(grace_s)s::float8)
WHERE t.key = ANY(ARRAY(SELECT a.key FROM admitted a)) AND t.status = 'ready' RETURNING t.key;
