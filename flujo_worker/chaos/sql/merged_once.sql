-- A merge and its event are one commit; a container that it closes has a separate event. The number of merges is known only for runs that succeed.
WITH merges AS (
    SELECT a.key, a.run_id, (SELECT count(*) FROM flujo_events e WHERE e.run_id = a.run_id AND e.attempt = a.key AND e.name = 'step.succeeded' AND e.data ->> 'step' = a.step) AS events
    FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
    WHERE r.metadata ->> 'chaos' = %(monkey)s AND a.status = 'succeeded' AND EXISTS (SELECT FROM flujo_spends s WHERE s.key = a.key)
)
SELECT 'attempt ' || key || ' was merged, and has ' || events || ' events of it' AS what FROM merges WHERE events <> 1
UNION ALL SELECT 'run ' || r.id || ' (' || (r.metadata ->> 'shape') || ') has ' || count(m.key) || ' merges, expected ' || (r.metadata ->> 'merges')
FROM flujo_runs r LEFT JOIN merges m ON m.run_id = r.id
WHERE r.metadata ->> 'chaos' = %(monkey)s AND r.status = 'succeeded' GROUP BY r.id HAVING count(m.key) <> (r.metadata ->> 'merges')::int;
