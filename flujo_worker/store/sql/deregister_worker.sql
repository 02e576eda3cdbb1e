-- A worker that stops in order: what it may still hold is free at once.
UPDATE flujo_workers SET ended_at = now(), lease_until = now() WHERE id = %(id)s AND ended_at IS NULL;
