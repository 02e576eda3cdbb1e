-- Deepest first, in the order everything locks scopes in: a parent's address is always shorter. Only the root retains its context.
WITH held AS (SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND status = 'open' ORDER BY length(address) DESC, address FOR UPDATE)
UPDATE flujo_scopes s SET status = 'cancelled', closed_by = %(status)s, closed_at = now(), context = CASE WHEN s.parent IS NULL THEN s.context END
FROM held WHERE s.run_id = %(run)s AND s.address = held.address;
