-- Runs that continue under changed code. Older code continues to work: the column is null, and no row is rewritten.

-- When workers with this plan's code first took a run over: the start of the latest of them. A worker started before does not take it back.
ALTER TABLE flujo_pipelines ADD COLUMN adopted_at timestamptz;
