-- A suspect could not be isolated: its message is used up, so its row is due again after a while. It was not claimed, and messages do
-- arrive: its sends are counted from zero.
UPDATE flujo_attempts SET status = 'ready', sends = 0, available_at = now() + make_interval(secs => %(delay_s)s::float8)
WHERE key = %(key)s::text AND status = 'queued';
