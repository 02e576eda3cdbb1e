-- The hook calls that no other worker is making. The oldest of each pipeline first: calls of code that is not deployed any more must not hide the others.
SELECT run_id, payload, attempt, reference, fingerprint, root, losses, losses_alone FROM (
    SELECT c.tries + (c.worker IS NOT NULL)::int AS losses, c.losses_alone + (c.worker IS NOT NULL AND c.alone)::int AS losses_alone,
           c.run_id, c.payload, c.attempt, c.created_at, r.reference, r.fingerprint, r.root,
           row_number() OVER (PARTITION BY r.reference, r.fingerprint ORDER BY c.created_at) AS place
    FROM flujo_hook_calls c JOIN flujo_runs r ON r.id = c.run_id
    WHERE c.worker IS NULL OR c.worker = %(worker)s
       OR (%(may_judge)s::bool AND NOT EXISTS (SELECT 1 FROM flujo_workers w WHERE w.id = c.worker AND w.lease_until > now()))
) AS owed
ORDER BY place, created_at LIMIT %(limit)s;
