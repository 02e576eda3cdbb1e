-- How many open questions there are of the runs that match, by pipeline and the step that asks, and the moment of this count.
SELECT r.name, a.step AS word, count(*) AS count, now() AS at FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
WHERE
-- include open_questions
GROUP BY r.name, a.step ORDER BY count(*) DESC, r.name, a.step;
