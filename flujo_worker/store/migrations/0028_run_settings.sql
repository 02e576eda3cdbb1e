-- The settings that a run was enqueued with. Null: code from before enqueued it, and each worker's own count.
ALTER TABLE flujo_runs ADD COLUMN settings jsonb;
