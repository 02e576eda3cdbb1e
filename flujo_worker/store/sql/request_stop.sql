-- Ask workers to stop: those of these ids or hosts that are alive. Each reads it when it renews its lease. A worker that stops for another
-- reason records it in the same way.
UPDATE flujo_workers SET stop_requested_at = coalesce(stop_requested_at, now())
WHERE (id = ANY(%(names)s::text[]) OR host = ANY(%(names)s::text[])) AND ended_at IS NULL AND lease_until > now() AND slots > 0
RETURNING id;
