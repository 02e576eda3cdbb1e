-- Runs that wait for other bodies of the same plan. The oldest of each pipeline first, as in parked.sql.
SELECT id, reference, fingerprint, parked_for::text FROM (
    SELECT id, reference, fingerprint, parked_for, created_at,
           row_number() OVER (PARTITION BY reference, fingerprint ORDER BY created_at) AS place
    FROM flujo_runs WHERE status = 'parked' AND parked_for IS NOT NULL
) AS waiting
ORDER BY place, created_at LIMIT %(limit)s;
