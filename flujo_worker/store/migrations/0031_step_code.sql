-- What `flujo runs diff` shows of changed code. Older code writes none of this and continues to work; no row is rewritten.

-- The present version of code of each step of a plan, by its path: a row for each step that a worker has met, overwritten by the next deploy.
CREATE TABLE flujo_step_code (
    fingerprint text NOT NULL,
    path        text NOT NULL,
    code        text NOT NULL,
    PRIMARY KEY (fingerprint, path)
);
-- Texts of parts that are not functions, such as prompts, shortened and redacted.
ALTER TABLE flujo_code ADD COLUMN texts jsonb;
