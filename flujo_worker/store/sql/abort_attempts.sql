-- The attempts that wait to run in an aborted fan-out. Running ones close themselves.
WITH held AS (
    SELECT key FROM flujo_attempts
    WHERE run_id = %(run)s AND ended_at IS NULL AND status IN ('ready', 'queued', 'paused')
      AND (starts_with(address, %(fan_out)s || '/') OR starts_with(address, %(fan_out)s || '#'))
    ORDER BY key FOR UPDATE
)
UPDATE flujo_attempts a SET status = 'cancelled', reason = 'aborted', ended_at = now() FROM held WHERE a.key = held.key;
