-- Give the requests of a batch their results: once, whoever reads them. The attempts that wait for them are due.
WITH answered AS (
    UPDATE flujo_batch_requests r SET result = f.result, body = NULL
    FROM unnest(%(ids)s::text[], %(results)s::bytea[]) AS f (id, result) WHERE r.id = f.id AND r.result IS NULL RETURNING r.run_id, r.place
),
gone AS (DELETE FROM flujo_batches WHERE id = %(batch)s::uuid)
UPDATE flujo_attempts a SET available_at = now()
FROM (SELECT DISTINCT run_id, split_part(place, ':', 1) AS address, split_part(place, ':', 2) AS step FROM answered) t
WHERE a.run_id = t.run_id AND a.address = t.address AND a.step = t.step AND a.status = 'ready' AND a.available_at > now() AND a.ended_at IS NULL;
