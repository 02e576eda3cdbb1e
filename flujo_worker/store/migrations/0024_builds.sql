-- The build of the user's code of a plan, as far as workers report it. Older code continues to work: both columns are null.

ALTER TABLE flujo_pipelines ADD COLUMN build text;
ALTER TABLE flujo_workers ADD COLUMN code_build text;
