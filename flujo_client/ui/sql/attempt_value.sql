-- A value of an attempt: its output or its input.
SELECT CASE WHEN %(is_output)s THEN output ELSE input END AS body FROM flujo_attempts WHERE key = %(key)s AND run_id = %(run)s;
