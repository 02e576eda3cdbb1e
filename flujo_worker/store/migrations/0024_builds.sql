-- Which build of the user's code a plan belongs to, as far as workers say. Code from before goes on working: both columns are null.

ALTER TABLE flujo_pipelines ADD COLUMN build text;
ALTER TABLE flujo_workers ADD COLUMN code_build text;
