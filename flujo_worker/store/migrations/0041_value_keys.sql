-- A known value for each id of a value key (ADR 48), encrypted with it: a worker with another secret under that id cannot read it, and takes no work.
-- It is base64, because every bytea is a value that `flujo runs reencrypt` encrypts anew.
CREATE TABLE flujo_value_keys (
    id         text PRIMARY KEY,
    canary     text NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now()
);
