-- Open questions to people, over all runs, the oldest first; each filter is off when null.
SELECT a.run_id, r.name AS pipeline, a.address, a.step, a.key, a.question, a.status, a.created_at AS asked_at,
       nullif(a.available_at, 'infinity') AS expires_at, false AS is_over, r.status AS run_status,
       false AS is_answered, NULL::text AS answered_by, NULL::text AS note, NULL::timestamptz AS answered_at
FROM flujo_attempts a
JOIN flujo_runs r ON r.id = a.run_id
WHERE a.question IS NOT NULL AND a.ended_at IS NULL AND a.status = 'paused' AND a.available_at > now()
  AND r.status IN ('queued', 'running', 'parked') AND r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL OR r.deadline_at > now())
  AND (%(pipeline)s::text IS NULL OR r.name = %(pipeline)s::text OR r.reference = %(pipeline)s::text)
  AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text)
ORDER BY a.created_at, a.key
LIMIT %(limit)s::int OFFSET %(offset)s::int;
