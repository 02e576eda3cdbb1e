-- The fleet's settings of circuit breakers and rate limits (ADR 36), which operators change while runs are under way. Code from before reads none.
CREATE TABLE flujo_model_guards (
    guard      text NOT NULL,  -- breaker or rate
    model      text NOT NULL,  -- a model's name, or a pattern of names
    from_file  jsonb,          -- what the settings file of the worker that was started last says; null: nothing
    edits      jsonb,          -- what operators have set over it; null: nothing
    cleared_at timestamptz,    -- when an operator last closed the breaker or ended the slow-down
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (guard, model)
);
-- What an attempt that was returned to its row waits for, as in `breaker openai:gpt-5`; null: something else, or it was sent back by older code.
ALTER TABLE flujo_attempts ADD COLUMN waits_for text;
