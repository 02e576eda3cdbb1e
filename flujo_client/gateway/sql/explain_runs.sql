-- The runs, and the child runs that their sentences repeat, down to the second level: the one that a live run waits for, a question first,
-- or the one whose error a failed run has. Extras of a success are looked for at its top level only.
WITH RECURSIVE explained AS (
    SELECT id, NULL::text AS parent, 0 AS depth FROM flujo_runs WHERE id = ANY(%(runs)s::text[])
    UNION ALL SELECT c.id, t.id, t.depth + 1
    FROM explained t JOIN flujo_runs r ON r.id = t.id
    CROSS JOIN LATERAL (
        SELECT k.id FROM flujo_runs k
        WHERE k.parent_run = r.id AND k.parent_address IS NOT NULL AND CASE
            WHEN r.ended_at IS NULL THEN k.ended_at IS NULL
            WHEN r.status <> 'failed' OR k.status = 'succeeded' THEN false
            WHEN k.error IS NULL THEN upper('child_' || k.status) = r.error ->> 'code'
            WHEN r.failed_key IS NOT NULL THEN k.failed_key = r.failed_key
            ELSE (k.error ->> 'type_name', k.error ->> 'message') = (r.error ->> 'type_name', r.error ->> 'message') END
        ORDER BY EXISTS (SELECT FROM flujo_attempts q WHERE q.run_id = k.id AND q.ended_at IS NULL AND q.status = 'paused') DESC, k.created_at LIMIT 1
    ) c
    WHERE t.depth < 2
)
SELECT now() AS now, t.parent AS child_of, r.id, r.fingerprint, r.name, r.reference, r.status, r.created_at, r.reason, r.error AS fault, r.started_at, r.ended_at, r.deadline_at,
       r.cancel_requested_at, i.actor AS canceller, i.note AS cancel_note, r.root, r.parked, r.replaced_by, r.failed_key,
       CASE WHEN r.status = 'succeeded' THEN (
           SELECT s.step FROM flujo_scopes s
           WHERE s.run_id = r.id AND s.parent = r.root AND s.kind = 'fallback' AND s.metadata ? 'fallback_triggered' LIMIT 1
       ) END AS fell_back,
       r.status = 'succeeded' AND EXISTS (
           SELECT FROM (SELECT a.metadata FROM flujo_attempts a WHERE a.run_id = r.id LIMIT %(extras)s::int) a WHERE a.metadata ? 'aros.coercion.total'
       ) AS is_repaired
FROM explained t JOIN flujo_runs r ON r.id = t.id
LEFT JOIN LATERAL (SELECT n.actor, n.note FROM flujo_inputs n WHERE n.run_id = r.id AND n.kind = 'cancel' ORDER BY n.id LIMIT 1) i ON true
ORDER BY t.depth;
