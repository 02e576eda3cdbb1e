-- Every open scope in a fan-out, held until the transaction is over: work is only made by whoever holds an open scope at or above
-- it, so their state can be read after this, by a separate statement that sees what was committed before.
SELECT address FROM flujo_scopes
WHERE run_id = %(run)s AND status = 'open'
  AND (starts_with(address, %(fan_out)s || '/') OR starts_with(address, %(fan_out)s || '#'))
ORDER BY length(address) DESC, address FOR UPDATE;
