-- Those of these workers that have not ended; a later incarnation of one has its id before the `~`.
SELECT id FROM flujo_workers
WHERE split_part(id, '~', 1) = ANY(%(ids)s::text[]) AND ended_at IS NULL AND lease_until > now() ORDER BY id;
