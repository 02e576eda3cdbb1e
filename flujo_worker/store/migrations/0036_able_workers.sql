-- Which worker can take a run that this one cannot: the plans whose code a worker has loaded, the queues that it consumes, and which worker has let a
-- parked run continue. Code from before writes none of this; it parks such a run, as before.
ALTER TABLE flujo_workers ADD COLUMN plans text[] NOT NULL DEFAULT '{}', ADD COLUMN queues text[];
ALTER TABLE flujo_runs ADD COLUMN unparked_by text;
