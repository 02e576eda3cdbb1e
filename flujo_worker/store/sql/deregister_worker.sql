-- End a worker that stops in order, so that others may take its attempts at once.
UPDATE flujo_workers SET ended_at = now(), lease_until = now() WHERE id = %(id)s AND ended_at IS NULL;
