-- The fan-out of a join signal, held until the signal is over: signals come one after the other, and the next statement sees what was committed before.
SELECT 1 FROM flujo_scopes WHERE run_id = %(run)s AND address = %(address)s FOR NO KEY UPDATE;
