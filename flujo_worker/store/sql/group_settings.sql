-- What holds for the group's transaction: the plans of connection_settings.sql, and less patience. Who holds a budget commits soon, and if
-- someone does not, the others of the group are to continue alone.
SELECT set_config('lock_timeout', '1s', true),
-- include look_ups
FROM (SELECT true AS is_local) transaction;
