-- Record in which budgets the spend of an attempt is booked whose reservations a failover to a lagging replica has lost. They reserve
-- nothing: a later claim of the attempt reserves as usual. The budgets are held, so that no claim reserves at the same time.
INSERT INTO flujo_reservations (key, scope, run_id, usd, tokens, held)
SELECT a.key, r.scope, a.run_id, 0, 0, false FROM flujo_attempts a CROSS JOIN unnest(%(scopes)s::text[]) AS r (scope)
WHERE a.key = %(key)s::text AND NOT EXISTS (SELECT FROM flujo_reservations o WHERE o.key = a.key);
