-- How many runs match, by pipeline and status, and the moment of this count: later runs are not among them.
SELECT m.name, m.status AS word, count(*) AS count, now() AS at
FROM (
    SELECT r.name, CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END AS status
    FROM flujo_runs r
    WHERE
-- include matching
) m
GROUP BY m.name, m.status ORDER BY count(*) DESC, m.name, m.status;
