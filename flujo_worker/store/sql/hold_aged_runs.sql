-- Ended runs that have passed their retention, each with all its child runs, held so that no one begins another child run or a fork of one meanwhile.
-- The rule for a pipeline goes before the rule for all; a family is as old as the youngest in it, and kept as its first run says. As many
-- families as have so many runs together, and at least one. Runs that someone else holds are left out, and with them their families.
WITH
-- include aged_runs
,
sized AS (
    SELECT a.id, f.size, sum(f.size) OVER (ORDER BY a.id) AS total
    FROM aged a CROSS JOIN LATERAL (SELECT count(*) AS size FROM flujo_family(a.id)) f
),
family AS MATERIALIZED (
    SELECT f.id FROM sized s CROSS JOIN LATERAL flujo_family(s.id) AS f (id) WHERE s.total - s.size < %(limit)s::int
)
SELECT r.id FROM family JOIN flujo_runs r ON r.id = family.id FOR UPDATE OF r SKIP LOCKED;
