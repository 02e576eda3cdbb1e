-- Take an attempt: raise its fence, or return why not. One statement, with an answer in both cases.
-- A suspect may still look like running under a dead worker: its sweep has published it and is about to commit that.
WITH claimed AS (
-- include claimed
),
begun AS (
-- include run_begun
)
SELECT
-- include claim_answer
FROM flujo_attempts a LEFT JOIN flujo_runs r ON r.id = a.run_id
WHERE a.key = %(key)s;
