WITH held AS (SELECT key FROM flujo_attempts WHERE run_id = %(run)s AND ended_at IS NULL ORDER BY key FOR UPDATE)
UPDATE flujo_attempts a SET status = 'cancelled', reason = %(status)s, ended_at = now() FROM held WHERE a.key = held.key;
