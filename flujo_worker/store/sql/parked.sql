-- The oldest of each pipeline first: runs whose code no one deploys any more must not hide the others behind the limit.
SELECT id, reference, fingerprint FROM (
    SELECT id, reference, fingerprint, created_at,
           row_number() OVER (PARTITION BY reference, fingerprint ORDER BY created_at) AS place
    FROM flujo_runs WHERE status = 'parked' AND parked_for IS NULL AND id <> ALL(%(but)s::text[])
) AS waiting
ORDER BY place, created_at LIMIT %(limit)s;
