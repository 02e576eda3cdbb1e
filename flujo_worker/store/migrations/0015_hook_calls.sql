-- Pending hook calls, once they are committed. The commit that ends a run or opens a question creates a row, by any statement and any
-- version of the code; it is deleted once the hooks were called (ADR 22).

-- Whether its plan names any hooks; a plan may be too large to be looked into at the end of every run. No row is rewritten.
ALTER TABLE flujo_pipelines ADD COLUMN hooked boolean NOT NULL DEFAULT false;

CREATE TABLE flujo_hook_calls (
    run_id     text NOT NULL,
    payload    text NOT NULL CHECK (payload IN ('post_run', 'on_pause_requested')),
    attempt    text NOT NULL DEFAULT '',
    worker     text,
    tries      integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, payload, attempt)
);

CREATE FUNCTION flujo_owe_post_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO flujo_hook_calls (run_id, payload)
    SELECT NEW.id, 'post_run' FROM flujo_pipelines p WHERE p.fingerprint = NEW.fingerprint AND p.hooked
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION flujo_owe_pause() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO flujo_hook_calls (run_id, payload, attempt)
    SELECT r.id, 'on_pause_requested', NEW.key FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
    WHERE r.id = NEW.run_id AND p.hooked
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE TRIGGER flujo_run_ended AFTER UPDATE OF ended_at ON flujo_runs
    FOR EACH ROW WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION flujo_owe_post_run();
CREATE TRIGGER flujo_question_opened AFTER INSERT ON flujo_attempts
    FOR EACH ROW WHEN (NEW.status = 'paused') EXECUTE FUNCTION flujo_owe_pause();
