-- A few live attempts of each run, those that delay it most first; with their worker's lease, the limit that they wait for, and the error of the
-- previous attempt.
SELECT a.run_id, a.key, a.address, a.step, a.number, a.kind, a.status, a.created_at, a.queue, nullif(a.available_at, 'infinity') AS available_at,
       a.started_at, a.worker, a.losses, a.losses_alone, a.loss, a.room, a.question, coalesce(a.waits_for, 'limit ' || p.name) AS waits_for, a.waits_since,
       coalesce(w.lease_until > now() AND w.ended_at IS NULL, false) AS has_lease, b.error AS fault_before, b.ended_at AS failed_at
FROM unnest(%(runs)s::text[]) r (id)
CROSS JOIN LATERAL (
    SELECT * FROM flujo_attempts x WHERE x.run_id = r.id AND x.ended_at IS NULL
    ORDER BY x.status = 'paused' DESC, x.status = 'running' DESC, x.status = 'queued' DESC, x.available_at, x.created_at LIMIT %(few)s::int
) a
LEFT JOIN flujo_workers w ON w.id = a.worker LEFT JOIN flujo_permits p ON p.key = a.key AND p.fence IS NULL
LEFT JOIN flujo_attempts b ON a.number > 1 AND b.key = concat_ws(':', a.run_id, a.address, a.step, a.number - 1) AND b.status = 'failed';
