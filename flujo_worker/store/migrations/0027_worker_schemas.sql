-- Which schema each worker's code knows, so that a migration that its code could not live with waits for its end; when it was asked to
-- stop; and the oldest schema whose code can live with what a migration made. Code from before writes none of these.

ALTER TABLE flujo_workers ADD COLUMN schema integer, ADD COLUMN stop_requested_at timestamptz;
ALTER TABLE flujo_schema_version ADD COLUMN oldest integer NOT NULL DEFAULT 0;
