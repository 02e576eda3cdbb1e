-- The size of each table; and the age of the oldest transaction, under an empty name.
SELECT name, bytes::float8 AS value FROM flujo_sizes
UNION ALL SELECT '', coalesce(extract(epoch FROM now() - min(x.xact_start)), 0)::float8 FROM pg_stat_activity x
WHERE x.datname = current_database() AND x.backend_type = 'client backend' AND x.pid <> pg_backend_pid();
