-- A branch has paused: the next sibling that waits for a lane gets its lane, and the branch has none from now on. In the transaction of
-- the merge, after it, in the order everything locks scopes in; the sibling as in conclude.sql.
WITH sibling AS (
    SELECT s.address FROM flujo_scopes s
    WHERE s.run_id = %(run)s AND s.parent = %(fan_out)s AND s.held AND s.status = 'open'
      AND NOT EXISTS (SELECT 1 FROM flujo_scopes f WHERE f.run_id = %(run)s AND f.address = %(fan_out)s AND f.aborted)
    ORDER BY s.place LIMIT 1 FOR UPDATE OF s SKIP LOCKED
),
first AS (
    SELECT a.key FROM flujo_attempts a
    WHERE a.run_id = %(run)s AND a.address = (SELECT address FROM sibling) AND a.ended_at IS NULL AND a.status IN ('ready', 'queued', 'running')
      AND a.available_at = 'infinity' FOR UPDATE SKIP LOCKED
),
taken AS (
    UPDATE flujo_attempts a SET available_at = now() + make_interval(secs => %(grace_s)s)
    WHERE a.key = (SELECT key FROM first) RETURNING a.key
),
lane AS (
    UPDATE flujo_scopes s SET held = false, lanes = s.lanes || jsonb_build_object(%(fan_out)s::text, %(lane)s::int)
    WHERE s.run_id = %(run)s AND s.address = (SELECT address FROM sibling) AND EXISTS (SELECT 1 FROM taken)
),
leaving AS (
    SELECT s.address FROM flujo_scopes s
    WHERE s.run_id = %(run)s AND s.address = ANY(%(addresses)s::text[]) AND EXISTS (SELECT 1 FROM taken)
    ORDER BY length(s.address) DESC FOR UPDATE
),
left_ AS (
    UPDATE flujo_scopes s SET lanes = s.lanes || jsonb_build_object(%(fan_out)s::text, %(no_lane)s::int)
    FROM leaving WHERE s.run_id = %(run)s AND s.address = leaving.address
)
SELECT key AS taken FROM taken;
