-- Count the runs that have passed their retention, by pipeline and status; without their child runs.
WITH
-- include aged_runs

SELECT r.name AS pipeline, r.status, count(*) AS runs FROM aged JOIN flujo_runs r ON r.id = aged.id GROUP BY 1, 2 ORDER BY 1, 2;
