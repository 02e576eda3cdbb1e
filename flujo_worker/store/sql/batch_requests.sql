SELECT id, body FROM flujo_batch_requests WHERE batch = %(batch)s::uuid AND body IS NOT NULL ORDER BY asked_at, id;
