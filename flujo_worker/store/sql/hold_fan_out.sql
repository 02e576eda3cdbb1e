-- The fan-out of a join signal, held until the signal is over: signals come one after the other, and no one closes it meanwhile. The statement
-- after this one sees what was committed before.
SELECT 1 FROM flujo_scopes WHERE run_id = %(run)s AND address = %(address)s FOR NO KEY UPDATE;
