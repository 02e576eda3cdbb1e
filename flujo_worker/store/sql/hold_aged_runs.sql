-- Ended runs that have passed their retention, each with all its child runs, locked so that no other child run or fork of one begins
-- meanwhile. The rule for a pipeline overrides the rule for all; a family is as old as its youngest run, and retained by the rule of its
-- root run. As many families as have so many runs together, and at least one. Families with locked runs are left out.
WITH
-- include aged_runs
,
sized AS (
    SELECT a.id, f.size, sum(f.size) OVER (ORDER BY a.id) AS total
    FROM aged a CROSS JOIN LATERAL (SELECT count(*) AS size FROM flujo_family(a.id)) f
),
family AS MATERIALIZED (SELECT f.id FROM sized s CROSS JOIN LATERAL flujo_family(s.id) AS f (id) WHERE s.total - s.size < %(limit)s::int)
SELECT r.id FROM family JOIN flujo_runs r ON r.id = family.id FOR UPDATE OF r SKIP LOCKED;
