-- Ask live workers with these ids or hosts to stop: each reads it with its next renewal. A worker that stops for another reason also records it this way.
UPDATE flujo_workers SET stop_requested_at = coalesce(stop_requested_at, now())
WHERE (id = ANY(%(names)s::text[]) OR host = ANY(%(names)s::text[])) AND ended_at IS NULL AND lease_until > now() AND slots > 0 RETURNING id;
