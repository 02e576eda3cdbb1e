-- How many children of these containers are in each state, and in which of the buckets from `begin` to `till` they began and ended: one pass
-- over what may be 100 000 rows. date_part is float, extract is numeric and takes twice as long. An infinite time is not in any bucket.
SELECT parent, CASE WHEN held THEN 'held' ELSE status END AS status, count(*) AS children,
       CASE WHEN NOT held AND isfinite(opened_at) THEN
           width_bucket(date_part('epoch', opened_at - %(begin)s::timestamptz), 0, %(seconds)s::float8, %(buckets)s::int) END AS first,
       CASE WHEN NOT held AND isfinite(closed_at) IS NOT false THEN
           width_bucket(date_part('epoch', coalesce(closed_at, %(till)s) - %(begin)s::timestamptz), 0, %(seconds)s::float8, %(buckets)s::int) END AS last
FROM flujo_scopes WHERE run_id = %(run)s AND parent = ANY(%(at)s::text[]) AND kind = 'sequence' GROUP BY 1, 2, 4, 5;
