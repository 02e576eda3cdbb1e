-- Delete large values without references at the time of the marking, which were not stored or shared for longer than the marking takes. A
-- transaction that shares one meanwhile touches it first, and then it stays; a locked one is left for the next search.
WITH search AS (SELECT marking_since AS since, swept_to FROM flujo_sweeps WHERE marked_to IS NULL AND swept_to IS NOT NULL),
looked_at AS MATERIALIZED (
    SELECT b.digest, b.touched_at < s.since - make_interval(secs => %(unused_s)s::float8) AS is_old
    FROM search s JOIN flujo_blobs b ON b.digest > s.swept_to ORDER BY b.digest LIMIT %(limit)s::int
),
held AS MATERIALIZED (
    SELECT b.digest FROM looked_at l JOIN flujo_blobs b ON b.digest = l.digest
    WHERE l.is_old AND b.touched_at < (SELECT since FROM search) - make_interval(secs => %(unused_s)s::float8) FOR UPDATE OF b SKIP LOCKED
),
gone AS (DELETE FROM flujo_blobs b USING held WHERE b.digest = held.digest RETURNING 1),
moved AS (
    UPDATE flujo_sweeps f SET swept_to = (SELECT max(digest) FROM looked_at) FROM search s
    WHERE f.marking_since = s.since AND f.marked_to IS NULL AND f.swept_to = s.swept_to
)
SELECT (SELECT count(*) FROM gone) AS gone, (SELECT count(*) FROM looked_at) AS looked_at;
