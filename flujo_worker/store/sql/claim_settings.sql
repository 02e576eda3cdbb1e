-- What comes before a group of claims without limits: group_settings.sql, and nobody waits until the log is on disk. A crash of Postgres may
-- take such a claim with it. Then its attempt is queued as before and is done again, and what became of the first claim merges nothing (ADR 71).
SELECT set_config('synchronous_commit', 'off', true), s.* FROM (
-- include group_settings
) s;
