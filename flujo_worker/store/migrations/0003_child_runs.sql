-- Child runs: imports that run as separate runs. Every column is null or has a constant default, and no row is rewritten.

ALTER TABLE flujo_runs
    ADD COLUMN root           text NOT NULL DEFAULT '',
    ADD COLUMN parent_run     text,
    ADD COLUMN parent_address text;
-- A run's child runs: is one at this place alive, and what have they spent.
CREATE INDEX flujo_runs_children ON flujo_runs (parent_run, parent_address) WHERE parent_run IS NOT NULL;
