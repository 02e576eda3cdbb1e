-- No lease is renewed while the clock moves.
LOCK TABLE flujo_workers IN SHARE ROW EXCLUSIVE MODE
