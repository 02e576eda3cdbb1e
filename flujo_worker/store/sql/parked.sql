-- Runs that are parked for the code of their plan. The oldest of each pipeline first: code that is not deployed must not hide the others.
SELECT id, reference, fingerprint, parked_for::text FROM (
    SELECT id, reference, fingerprint, parked_for, created_at, row_number() OVER (PARTITION BY reference, fingerprint ORDER BY created_at) AS place
    FROM flujo_runs WHERE status = 'parked' AND (parked_for IS NOT NULL) = %(for_code)s::bool AND id <> ALL(%(but)s::text[])
) AS waiting
ORDER BY place, created_at LIMIT %(limit)s;
