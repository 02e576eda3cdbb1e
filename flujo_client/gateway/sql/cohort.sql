-- Live runs, oldest first, child runs among them; each filter is off when null.
SELECT r.id, r.reference, r.fingerprint FROM flujo_runs r
WHERE r.status IN ('queued', 'running', 'parked')
  AND (%(pipeline)s::text IS NULL OR r.name = %(pipeline)s::text OR r.reference = %(pipeline)s::text)
  AND (%(status)s::text IS NULL OR %(status)s::text = CASE WHEN r.status <> 'parked' AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END)
ORDER BY r.created_at, r.id LIMIT %(limit)s::int;
