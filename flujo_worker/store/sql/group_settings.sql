-- What holds for a connection of groups: the plans of connection_settings.sql, and less patience. Who holds a budget commits soon, and if
-- someone does not, the others of the group are to continue alone.
SELECT set_config('lock_timeout', '1s', is_local),
-- include look_ups
FROM (SELECT false AS is_local) connection;
