-- The plans that a run has used, with their versions, the latest first; then those of the run that it was forked from, and so on.
WITH RECURSIVE origin AS (
    SELECT r.id, r.fingerprint, r.forked_from, 0 AS depth FROM flujo_runs r WHERE r.id = %(run)s::text
    UNION ALL
    SELECT r.id, r.fingerprint, r.forked_from, o.depth + 1 FROM origin o JOIN flujo_runs r ON r.id = o.forked_from WHERE o.depth < %(most)s::int
)
SELECT p.fingerprint, p.version FROM (
    SELECT o.fingerprint, o.depth, 'infinity'::timestamptz AS until FROM origin o
    UNION ALL SELECT e.data ->> 'from', o.depth, e.at FROM origin o JOIN flujo_events e ON e.run_id = o.id AND e.name = 'run.carried_on'
) g JOIN flujo_pipelines p ON p.fingerprint = g.fingerprint
ORDER BY g.depth, g.until DESC;
