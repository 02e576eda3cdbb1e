-- The settings of a connection for groups: the plans of connection_settings.sql.
SELECT
-- include look_ups
FROM (SELECT false AS is_local) connection;
