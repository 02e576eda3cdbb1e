-- The gates that decide when a run is recorded and have no room for this one, and the runs that hold their places. If the oldest is to be
-- replaced, it is cancelled as in cancel.sql. A statement before this one locks the gates; the run is at none of them yet.
WITH asked AS (
    SELECT * FROM unnest(%(gate)s::text[], %(most)s::int[], %(policy)s::text[]) AS a (gate, most, policy)
    WHERE EXISTS (SELECT 1 FROM flujo_runs r WHERE r.id = %(run)s::text AND r.created_at = now())
),
without_room AS (
    SELECT a.* FROM asked a
    WHERE a.most IS NULL OR EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.gate = a.gate)
       OR (SELECT count(*) FROM flujo_gate_places p WHERE p.gate = a.gate AND (p.until IS NULL OR p.until > now())) >= a.most
),
holder AS (
    SELECT f.gate, f.policy, r.id, row_number() OVER (PARTITION BY f.gate ORDER BY r.created_at DESC, r.id DESC) >= coalesce(f.most, 1) AS is_beyond
    FROM without_room f
    CROSS JOIN LATERAL (
        SELECT p.run_id FROM flujo_gate_places p WHERE p.gate = f.gate AND p.until IS NULL
        UNION SELECT w.run_id FROM flujo_waiting_runs w WHERE w.gate = f.gate
    ) h
    JOIN flujo_runs r ON r.id = h.run_id AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL
),
held AS (
    SELECT r.id, h.gate FROM flujo_runs r JOIN holder h ON h.id = r.id
    WHERE h.policy = 'cancel_oldest' AND h.is_beyond AND r.ended_at IS NULL FOR UPDATE OF r
),
replaced AS (
    UPDATE flujo_runs r SET cancel_requested_at = coalesce(r.cancel_requested_at, now()), replaced_by = %(run)s::text,
           reason = 'replaced by run ' || %(run)s::text || ' (' || h.gate || ')'
    FROM held h WHERE r.id = h.id RETURNING r.id, r.reason
),
requested AS (INSERT INTO flujo_inputs (run_id, kind, note) SELECT id, 'cancel', reason FROM replaced),
story AS (
    INSERT INTO flujo_events (run_id, name, level, data)
    SELECT id, 'run.cancel_requested', 'warning', jsonb_build_object('reason', reason) FROM replaced
)
SELECT f.gate AS reached, f.policy, (SELECT h.id FROM holder h WHERE h.gate = f.gate ORDER BY h.is_beyond DESC LIMIT 1) AS holder
FROM without_room f WHERE f.policy IN ('drop', 'return');
