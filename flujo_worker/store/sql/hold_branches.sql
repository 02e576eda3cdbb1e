-- Lock every open scope in a fan-out until the end of the transaction: work is only created under a lock of an open scope at or above it,
-- so a separate statement can read their state after this, and sees everything that was committed before.
SELECT address FROM flujo_scopes
WHERE run_id = %(run)s AND status = 'open' AND (starts_with(address, %(fan_out)s || '/') OR starts_with(address, %(fan_out)s || '#'))
ORDER BY length(address) DESC, address FOR UPDATE;
