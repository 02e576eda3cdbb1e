-- What group_settings.sql says, for claims without limits, and no one waits until the log is on disk. A crash of Postgres may take such a
-- claim with it. Then its attempt is queued as before and is done again, and what came of the first claim merges nothing (ADR 16).
SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '1s', true),
-- include look_ups
FROM (SELECT true AS is_local) transaction;
