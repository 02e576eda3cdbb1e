-- A run that has begun, and is to fail by something outside its attempts: from this commit on nothing of it is claimed or merged, and whoever winds
-- it down, this process or a sweep, ends it as failed.
UPDATE flujo_runs SET cancel_requested_at = coalesce(cancel_requested_at, now()), error = %(error)s::jsonb
WHERE id = %(run)s AND status IN ('running', 'parked') AND cancel_requested_at IS NULL AND error IS NULL;
