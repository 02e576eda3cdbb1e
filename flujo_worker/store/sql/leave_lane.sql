-- A branch has paused: the next sibling that waits for a lane gets its lane, and the branch has none from now on. In the transaction of
-- the merge, after it, in the order everything locks scopes in; the sibling as in conclude.sql. If all that wait are locked, the branch leaves its lane
-- all the same, and idle_lanes.sql finds that. Without addresses it gives away a lane that idle_lanes.sql has found.
WITH giving AS (
    SELECT 1 WHERE cardinality(%(addresses)s::text[]) > 0 OR NOT EXISTS (
        SELECT 1 FROM flujo_scopes o
        WHERE o.run_id = %(run)s::text AND o.parent = %(fan_out)s::text AND o.status = 'open' AND o.lanes -> %(fan_out)s::text = to_jsonb(%(lane)s::int)
    )
),
-- include next_in_lane
leaving AS (
    SELECT s.address FROM flujo_scopes s
    WHERE s.run_id = %(run)s::text AND s.address = ANY(%(addresses)s::text[]) AND EXISTS (
        SELECT 1 FROM flujo_scopes h JOIN flujo_scopes f ON f.run_id = h.run_id AND f.address = h.parent
        WHERE h.run_id = %(run)s::text AND h.parent = %(fan_out)s::text AND h.held AND h.status = 'open' AND NOT f.aborted
    )
    ORDER BY length(s.address) DESC FOR UPDATE
),
left_ AS (
    UPDATE flujo_scopes s SET lanes = s.lanes || jsonb_build_object(%(fan_out)s::text, %(no_lane)s::int)
    FROM leaving WHERE s.run_id = %(run)s::text AND s.address = leaving.address
)
SELECT key AS taken FROM taken;
