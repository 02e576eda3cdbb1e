-- Touch the large values that these runs reference, and their parts, during a search for unused values. A manifest is `p`, a checksum of 64
-- characters and a JSON list that names parts as {"#": digest}. Returns how many values were locked: it never waits, so the caller repeats it.
WITH search AS (SELECT marking_since AS since FROM flujo_sweeps WHERE marked_to IS NOT NULL),
run AS MATERIALIZED (SELECT r.id FROM search CROSS JOIN unnest(%(runs)s::text[]) AS r (id)),
value (v) AS (
    SELECT v.v FROM run JOIN flujo_runs r ON r.id = run.id CROSS JOIN LATERAL (VALUES (r.input), (r.output), (r.launched_with)) AS v (v)
    UNION ALL SELECT v.v FROM run JOIN flujo_scopes s ON s.run_id = run.id CROSS JOIN LATERAL (VALUES (s.output), (s.context), (s.patch)) AS v (v)
    UNION ALL SELECT v.v FROM run JOIN flujo_attempts a ON a.run_id = run.id CROSS JOIN LATERAL (VALUES (a.input), (a.output)) AS v (v)
    UNION ALL SELECT u.answer FROM run JOIN flujo_units u ON u.run_id = run.id
    UNION ALL SELECT c.context FROM run JOIN flujo_contexts c ON c.run_id = run.id
    UNION ALL SELECT i.answer FROM run JOIN flujo_inputs i ON i.run_id = run.id
),
whole AS MATERIALIZED (SELECT DISTINCT convert_from(substr(v, 2), 'UTF8') AS digest FROM value WHERE substr(v, 1, 1) = '#'::bytea),
used AS (
    SELECT digest FROM whole
    UNION SELECT 'part:' || (entry ->> '#')
    FROM whole JOIN flujo_blobs b ON b.digest = whole.digest
    CROSS JOIN LATERAL jsonb_array_elements(
        CASE WHEN substr(b.body, 1, 1) = 'p'::bytea THEN convert_from(substr(b.body, 66), 'UTF8') ELSE '[]' END::jsonb
    ) AS entry
    WHERE jsonb_typeof(entry) = 'object'
),
stale AS MATERIALIZED (SELECT b.digest FROM used JOIN flujo_blobs b ON b.digest = used.digest WHERE b.touched_at < (SELECT since FROM search)),
held AS MATERIALIZED (SELECT b.digest FROM stale JOIN flujo_blobs b ON b.digest = stale.digest FOR UPDATE OF b SKIP LOCKED),
touched AS (UPDATE flujo_blobs b SET touched_at = now() FROM held WHERE b.digest = held.digest RETURNING 1)
SELECT (SELECT count(*) FROM stale) - (SELECT count(*) FROM touched) AS missed;
