-- From this commit on nothing of the run is claimed or merged. FOR UPDATE waits for merges that are under way.
WITH held AS (SELECT id FROM flujo_runs WHERE id = %(run)s AND ended_at IS NULL FOR UPDATE)
UPDATE flujo_runs r SET cancel_requested_at = coalesce(r.cancel_requested_at, now()) FROM held WHERE r.id = held.id
RETURNING r.id;
