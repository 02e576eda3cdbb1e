sibling AS (
    SELECT s.address, a.key FROM flujo_scopes s
    JOIN flujo_attempts a ON a.run_id = s.run_id AND a.address = s.address AND a.ended_at IS NULL AND a.status IN ('ready', 'queued', 'running') AND a.available_at = 'infinity'
    WHERE s.run_id = %(run)s::text AND s.parent = %(fan_out)s::text AND s.held AND s.status = 'open' AND EXISTS (SELECT 1 FROM giving)
      AND NOT EXISTS (SELECT 1 FROM flujo_scopes f WHERE f.run_id = %(run)s::text AND f.address = %(fan_out)s::text AND f.aborted)
    ORDER BY s.place LIMIT 1 FOR UPDATE OF s, a SKIP LOCKED
),
taken AS (
    UPDATE flujo_attempts a SET available_at = now() + make_interval(secs => %(grace_s)s::float8)
    WHERE a.key = (SELECT key FROM sibling) RETURNING a.key
),
lane AS (
    UPDATE flujo_scopes s SET held = false, lanes = s.lanes || jsonb_build_object(%(fan_out)s::text, %(lane)s::int)
    WHERE s.run_id = %(run)s::text AND s.address = (SELECT address FROM sibling) AND EXISTS (SELECT 1 FROM taken)
),
