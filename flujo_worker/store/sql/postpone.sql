-- Make an attempt due again after a while, because a suspect could not be isolated and its message is consumed. Sends are counted from zero.
UPDATE flujo_attempts SET status = 'ready', sends = 0, available_at = now() + make_interval(secs => %(delay_s)s::float8)
WHERE key = %(key)s::text AND status = 'queued';
