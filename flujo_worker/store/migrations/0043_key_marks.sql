-- A mark of each key of the client that enqueued a run: a worker with another secret under such a key's id takes no work. NULL: its client
-- had no keys, or is older. The canaries that did this for value keys alone were in no release.
ALTER TABLE flujo_runs ADD COLUMN key_marks text[];
DROP TABLE flujo_value_keys;
