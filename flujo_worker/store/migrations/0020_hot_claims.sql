-- No index of attempts has their status any more, neither as a column nor in its condition: a claim, and marking a message as sent, change no
-- index entry (HOT), so they cost less, and so does every merge after them. What the indexes ask for instead was there before: an attempt
-- that has not ended has no `ended_at`, and one that waits for a person has a `question`. A question that is answered, and not yet worked
-- on, keeps both. Code from before goes on working and writes what it wrote, but its sweeps read all attempts: restart workers soon after.

-- No version of the code creates such a row; if a manual change did, it must not count as live.
UPDATE flujo_attempts SET ended_at = coalesce(started_at, created_at) WHERE status IN ('succeeded', 'failed', 'cancelled') AND ended_at IS NULL;

-- Built before the others are dropped: reads go on meanwhile, and writes wait.
-- An attempt owns its scope: one each that has not ended, be it live or a question.
CREATE UNIQUE INDEX flujo_attempts_not_ended ON flujo_attempts (run_id, address) WHERE ended_at IS NULL;
CREATE INDEX flujo_attempts_available ON flujo_attempts (available_at) WHERE ended_at IS NULL;
CREATE INDEX flujo_attempts_open_questions ON flujo_attempts (available_at) WHERE question IS NOT NULL AND ended_at IS NULL;
DROP INDEX flujo_attempts_owner, flujo_attempts_live, flujo_attempts_asked, flujo_attempts_overdue;
ALTER INDEX flujo_attempts_not_ended RENAME TO flujo_attempts_owner;
ALTER INDEX flujo_attempts_available RENAME TO flujo_attempts_live;
ALTER INDEX flujo_attempts_open_questions RENAME TO flujo_attempts_asked;

-- For what is written from now on: a row with one and not the other would be missed by all that looks for live ones.
ALTER TABLE flujo_attempts ADD CONSTRAINT flujo_attempts_ended
    CHECK ((ended_at IS NULL) = (status IN ('ready', 'queued', 'running', 'paused'))) NOT VALID;

-- As it was, by the new indexes.
CREATE OR REPLACE FUNCTION flujo_is_paused(run text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM flujo_kin(run) k JOIN flujo_attempts a ON a.run_id = k WHERE a.ended_at IS NULL AND a.status = 'paused')
       AND NOT EXISTS (
           SELECT FROM flujo_kin(run) k JOIN flujo_attempts a ON a.run_id = k
           WHERE a.ended_at IS NULL AND a.status IN ('ready', 'queued', 'running') AND (a.status <> 'ready' OR a.available_at < 'infinity'))
$$;
