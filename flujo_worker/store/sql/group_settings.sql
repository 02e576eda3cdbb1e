-- The settings of a connection for groups: the plans of connection_settings.sql, and shorter timeouts. A transaction that holds a budget
-- commits soon; if one does not, the others of the group should continue alone.
SELECT set_config('lock_timeout', '1s', is_local),
-- include look_ups
FROM (SELECT false AS is_local) connection;
