-- Runs that were recorded in this transaction, as due, come to their gates: each is admitted if all of them have room and no one waits there, else it
-- waits at the first that has none, and its first attempt with it; meanwhile it holds its places in those that decide as it is recorded. Gates are
-- locked by a statement before this one. Where runs may not be admitted (`judges` is false), all wait for the next admission.
WITH asked AS MATERIALIZED (
    SELECT a.*, %(judges)s::bool AND a.wait_s = 0 AND (a.most IS NULL OR (
        NOT EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.gate = a.gate)
        AND a.before + (SELECT count(*) FROM flujo_gate_places p WHERE p.gate = a.gate AND (p.until IS NULL OR p.until > now())) < a.most
    )) AS has_room
    FROM unnest(
        %(run)s::text[], %(key)s::text[], %(priority)s::int[], %(before)s::int[], %(gate)s::text[], %(most)s::int[], %(period_s)s::float8[],
        %(flow)s::text[], %(decides)s::bool[], %(wait_s)s::float8[], %(is_window)s::bool[]
    ) WITH ORDINALITY AS a (run, key, priority, before, gate, most, period_s, flow, decides, wait_s, is_window, rank)
    WHERE EXISTS (SELECT 1 FROM flujo_runs r WHERE r.id = a.run AND r.created_at = now())  -- not an earlier run with the same id
      AND NOT EXISTS (SELECT 1 FROM flujo_gate_places p WHERE p.run_id = a.run) AND NOT EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.run_id = a.run)
),
waits AS (
    INSERT INTO flujo_waiting_runs (run_id, key, gate, flow, most, priority, not_before)
    SELECT f.run, f.key, f.gate, f.flow, f.most, f.priority, CASE WHEN f.wait_s > 0 THEN now() + make_interval(secs => f.wait_s) END
    FROM asked f
    WHERE NOT f.has_room AND NOT EXISTS (SELECT 1 FROM asked e WHERE e.run = f.run AND NOT e.has_room AND e.rank < f.rank)
    ORDER BY f.rank
    RETURNING run_id, key, gate
),
placed AS (
    INSERT INTO flujo_gate_places (gate, run_id, is_window, until)
    SELECT a.gate, a.run, a.is_window, CASE WHEN a.period_s IS NOT NULL THEN 'infinity'::timestamptz END  -- the period begins with the run
    FROM asked a
    WHERE a.most IS NOT NULL AND ((a.has_room AND a.decides) OR NOT EXISTS (SELECT 1 FROM waits w WHERE w.run_id = a.run))
),
held_back AS (
    UPDATE flujo_attempts t SET available_at = now() + make_interval(secs => %(waiting_s)s::float8)
    WHERE t.key = ANY(ARRAY(SELECT w.key FROM waits w))
),
story AS (INSERT INTO flujo_events (run_id, name, data) SELECT run_id, 'run.waiting', jsonb_build_object('gate', gate) FROM waits)
SELECT DISTINCT a.run, w.gate AS waits_at FROM asked a LEFT JOIN waits w ON w.run_id = a.run;
