-- The progress of the search for unused values; no row if there is none. Runs that began after it are not examined: the values that they
-- refer to were stored after that too, or taken over from a run that is examined.
WITH search AS (SELECT marking_since, marked_to, swept_to FROM flujo_sweeps WHERE swept_to IS NOT NULL)
SELECT s.marking_since AS since, s.marked_to, s.swept_to,
       ARRAY(SELECT r.id FROM flujo_runs r WHERE r.id > s.marked_to AND r.created_at < s.marking_since ORDER BY r.id LIMIT %(limit)s::int) AS runs
FROM search s;
