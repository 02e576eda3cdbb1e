-- The first runs in each queue of each gate that has room: one look-up for each gate and queue, for any number of waiting runs, those that wait for
-- their time included. `gates` names those that may have room; null: all.
WITH RECURSIVE waited_at (gate) AS (
    (SELECT w.gate FROM flujo_waiting_runs w WHERE %(gates)s::text[] IS NULL ORDER BY w.gate LIMIT 1)
    UNION ALL
    SELECT n.gate FROM waited_at q CROSS JOIN LATERAL (SELECT w.gate FROM flujo_waiting_runs w WHERE w.gate > q.gate ORDER BY w.gate LIMIT 1) n
),
open AS MATERIALIZED (
    SELECT g.gate
    FROM (SELECT gate FROM waited_at UNION SELECT unnest(%(gates)s::text[])) g
    CROSS JOIN LATERAL (SELECT w.most FROM flujo_waiting_runs w WHERE w.gate = g.gate LIMIT 1) m
    CROSS JOIN LATERAL (SELECT count(*) AS taken FROM flujo_gate_places p WHERE p.gate = g.gate AND (p.until IS NULL OR p.until > now())) t
    WHERE m.most IS NULL OR t.taken < m.most
),
queue (gate, flow) AS (
    SELECT o.gate, f.flow FROM open o
    CROSS JOIN LATERAL (SELECT w.flow FROM flujo_waiting_runs w WHERE w.gate = o.gate ORDER BY w.flow LIMIT 1) f
    UNION ALL SELECT q.gate, n.flow FROM queue q CROSS JOIN LATERAL (
        SELECT w.flow FROM flujo_waiting_runs w WHERE w.gate = q.gate AND w.flow > q.flow ORDER BY w.flow LIMIT 1
    ) n
)
SELECT f.run_id, q.gate, r.gates::text AS gates
FROM queue q
CROSS JOIN LATERAL (
    SELECT w.run_id FROM flujo_waiting_runs w
    WHERE w.gate = q.gate AND w.flow = q.flow AND coalesce(w.not_before, '-infinity') <= now()
    ORDER BY coalesce(w.not_before, '-infinity'), w.priority, w.arrived LIMIT %(each)s::int
) f
LEFT JOIN flujo_runs r ON r.id = f.run_id
LIMIT %(limit)s::int;
