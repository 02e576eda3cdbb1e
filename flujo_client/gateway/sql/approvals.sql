-- Open questions to people, of all runs that match, the oldest first. A reader of many pages continues `after` the last one that it has read.
SELECT a.run_id, r.name AS pipeline, a.address, a.step, a.key, a.question, a.status, a.created_at AS asked_at,
       nullif(a.available_at, 'infinity') AS expires_at, false AS is_over, r.status AS run_status,
       false AS is_answered, NULL::text AS answered_by, NULL::text AS note, NULL::timestamptz AS answered_at
FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
WHERE
-- include open_questions
  AND (%(after_at)s::timestamptz IS NULL OR (a.created_at, a.key) > (%(after_at)s::timestamptz, %(after_key)s::text))
  AND (%(until)s::timestamptz IS NULL OR a.created_at <= %(until)s::timestamptz)
ORDER BY a.created_at, a.key LIMIT %(limit)s::int OFFSET %(offset)s::int;
