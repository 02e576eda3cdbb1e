-- Move a run with all its open work to another plan; its rows are locked, and unchanged since the decision. Published messages name the old plan and
-- claim nothing any more: their work is published again. Every open scope gets another version, which rejects decisions under the old plan.
WITH open AS (
    SELECT a.key AS of, m.new_key, m.step, m.number, m.kind, m.queue, m.anew
    FROM flujo_attempts a
    LEFT JOIN unnest(
        %(keys)s::text[], %(new_keys)s::text[], %(steps)s::text[], %(numbers)s::int[], %(kinds)s::text[], %(queues)s::text[], %(anew)s::bool[]
    ) AS m (key, new_key, step, number, kind, queue, anew) ON m.key = a.key
    WHERE a.run_id = %(run)s::text AND a.ended_at IS NULL
),
moved AS (
    UPDATE flujo_attempts a
    SET key = coalesce(o.new_key, a.key), step = coalesce(o.step, a.step), number = coalesce(o.number, a.number), kind = coalesce(o.kind, a.kind),
        queue = coalesce(o.queue, a.queue), guidance = CASE WHEN NOT coalesce(o.anew, false) THEN a.guidance END,
        units_from = CASE WHEN NOT coalesce(o.anew, false) THEN a.units_from END, pauses = CASE WHEN coalesce(o.anew, false) THEN 0 ELSE a.pauses END,
        losses = CASE WHEN coalesce(o.anew, false) THEN 0 ELSE a.losses END, loss = CASE WHEN NOT coalesce(o.anew, false) THEN a.loss END,
        losses_alone = CASE WHEN coalesce(o.anew, false) THEN 0 ELSE a.losses_alone END,
        suspicions = CASE WHEN coalesce(o.anew, false) THEN 0 ELSE a.suspicions END,
        status = CASE WHEN a.status = 'paused' THEN 'paused' ELSE 'ready' END,
        worker = NULL, started_at = CASE WHEN a.status = 'paused' THEN a.started_at END,
        available_at = CASE WHEN a.status IN ('queued', 'running') THEN now() ELSE a.available_at END
    FROM open o WHERE a.key = o.of
),
scopes AS (UPDATE flujo_scopes SET version = version + 1 WHERE run_id = %(run)s::text AND status = 'open'),
run AS (
    UPDATE flujo_runs
    SET fingerprint = %(fingerprint)s::text,
        parked_for = NULL, parked = NULL, status = CASE status WHEN 'parked' THEN 'running' ELSE status END, reason = CASE status WHEN 'parked' THEN NULL ELSE reason END
    WHERE id = %(run)s::text RETURNING id
)
INSERT INTO flujo_events (run_id, name, level, data)
SELECT id, 'run.carried_on', %(level)s::text, %(data)s::text::jsonb FROM run;
