-- Questions to people: a work row that is paused holds one. New columns are null, and no row is rewritten; no row is paused yet, so the
-- indexes are built of nothing.

ALTER TABLE flujo_attempts ADD COLUMN question jsonb;
CREATE UNIQUE INDEX flujo_attempts_asked ON flujo_attempts (run_id, address) WHERE status = 'paused';
CREATE INDEX flujo_attempts_overdue ON flujo_attempts (available_at) WHERE status = 'paused';
CREATE INDEX flujo_attempts_questions ON flujo_attempts (run_id) WHERE kind = 'resume';

ALTER TABLE flujo_inputs
    ADD COLUMN address text,
    ADD COLUMN step    text,
    ADD COLUMN answer  bytea;
-- Single use: of two answers at once, one is recorded (M-452).
CREATE UNIQUE INDEX flujo_inputs_answer ON flujo_inputs (attempt) WHERE kind = 'answer';
