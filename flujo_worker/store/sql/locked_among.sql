-- The attempts whose rows another transaction holds: their own, their scope's, or their run's. To claim or to merge one would wait for it. What
-- is free is held until the end of this statement, which is all of its transaction.
WITH attempt AS (SELECT a.key, a.run_id, a.address FROM flujo_attempts a WHERE a.key = ANY(%(keys)s::text[]) FOR NO KEY UPDATE SKIP LOCKED),
scope AS (
    SELECT s.run_id, s.address FROM flujo_scopes s
    WHERE (s.run_id, s.address) IN (SELECT a.run_id, a.address FROM flujo_attempts a WHERE a.key = ANY(%(keys)s::text[])) FOR NO KEY UPDATE SKIP LOCKED
),
run AS (
    SELECT r.id FROM flujo_runs r
    WHERE r.id IN (SELECT a.run_id FROM flujo_attempts a WHERE a.key = ANY(%(keys)s::text[])) FOR NO KEY UPDATE SKIP LOCKED
)
SELECT a.key FROM flujo_attempts a
WHERE a.key = ANY(%(keys)s::text[])
  AND NOT (
      EXISTS (SELECT 1 FROM attempt h WHERE h.key = a.key)
      AND EXISTS (SELECT 1 FROM run r WHERE r.id = a.run_id)
      AND (EXISTS (SELECT 1 FROM scope s WHERE s.run_id = a.run_id AND s.address = a.address)
           OR NOT EXISTS (SELECT 1 FROM flujo_scopes s WHERE s.run_id = a.run_id AND s.address = a.address))
  );
