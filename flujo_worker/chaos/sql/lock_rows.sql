-- Rows of one table, as a `SELECT … FOR UPDATE` in an idle session holds them: those that are there, up to a hundred.
SELECT 1 FROM {table} LIMIT 100 FOR UPDATE SKIP LOCKED;
