-- How often a worker process was found broken, and ended itself, while this attempt ran in it beside others: one of them may have broken it.
-- That is no loss, but with it an attempt becomes a suspect, as with losses (ADR 13). Code from before leaves it as it is.
ALTER TABLE flujo_attempts ADD COLUMN suspicions integer NOT NULL DEFAULT 0;
