-- The lanes of fan-outs in which branches wait for a lane and none runs in one: when the last of them came free, every branch that waited was locked by
-- another session. OFFSET 0 as in stranded.sql. The lanes of a fan-out are those that branches of it have had; of a damaged row they are not known.
WITH idle AS MATERIALIZED (
    SELECT s.run_id, s.address FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id
    WHERE s.waiting AND s.status = 'open' AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL AND
-- include idle_lane
    ORDER BY s.opened_at LIMIT %(limit)s
)
SELECT DISTINCT i.run_id, i.address, coalesce((c.lanes ->> i.address)::int, 0) AS lane
FROM idle i JOIN flujo_scopes c ON c.run_id = i.run_id AND c.parent = i.address
WHERE c.lanes -> i.address IS NULL OR c.lanes ->> i.address ~ '^\d{1,9}$';
