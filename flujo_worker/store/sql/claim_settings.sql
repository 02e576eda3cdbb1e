-- As group_settings.sql, for a connection of claims without limits, which do not wait until the log is on disk. A crash of Postgres may
-- lose such a claim. Then its attempt is queued as before and is done again, and the outcome of the first claim merges nothing (ADR 16).
SELECT set_config('synchronous_commit', 'off', is_local),
-- include look_ups
FROM (SELECT false AS is_local) connection;
