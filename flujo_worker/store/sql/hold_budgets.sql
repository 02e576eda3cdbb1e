-- Lock the rows to reserve or settle, so that the next statement sees their current state. A run that ends releases all reservations. Locks
-- are always taken in this order: reservations, by attempt and name → budgets, by name.
WITH holder AS (
    SELECT r.key FROM unnest(%(ended)s::text[]) AS e (run) CROSS JOIN LATERAL (
        SELECT r.key FROM flujo_reservations r WHERE r.run_id = e.run AND r.held OFFSET 0
    ) r
    UNION SELECT unnest(%(holders)s::text[])
),
taken AS (SELECT r.scope FROM flujo_reservations r WHERE r.key = ANY(ARRAY(SELECT key FROM holder)) ORDER BY r.key, r.scope FOR UPDATE)
SELECT b.scope FROM flujo_budgets b
WHERE b.scope = ANY(ARRAY(SELECT scope FROM taken UNION SELECT unnest(%(scopes)s::text[]))) ORDER BY b.scope FOR UPDATE;
