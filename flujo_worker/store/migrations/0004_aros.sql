-- The project's [aros] table as it was when the run was enqueued, for every ticket of the run (M-149). The column is null where the
-- project has none, and no row is rewritten.

ALTER TABLE flujo_runs ADD COLUMN aros jsonb;
