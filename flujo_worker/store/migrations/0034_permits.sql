-- Concurrency limits of steps: how many attempts run at once under a name. Older code reads and writes none of this.

-- A request for a permit locks the row of its limit, so that concurrent requests see each other. The last one to ask sets `at_once`.
CREATE TABLE flujo_limits (
    name     text PRIMARY KEY,
    at_once  integer NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT now()
);

-- An attempt that has asked: under `fence` it was let through, without one it waits. A permit is in use only while its attempt runs under that
-- fence and the lease of its worker lasts, so no one has to give it back. `offered_at`: when a waiting attempt was last sent, to ask again.
CREATE TABLE flujo_permits (
    key        text PRIMARY KEY,
    name       text NOT NULL,
    turn       bigint GENERATED ALWAYS AS IDENTITY,
    fence      integer,
    offered_at timestamptz
);
CREATE INDEX flujo_permits_held ON flujo_permits (name) WHERE fence IS NOT NULL;
CREATE INDEX flujo_permits_waiting ON flujo_permits (name, turn) WHERE fence IS NULL;

-- `flujo status` shows which breakers are open. Writes wait while the index is built.
CREATE INDEX flujo_events_breakers ON flujo_events (at) WHERE name IN ('flujo.breaker.opened', 'flujo.breaker.half_open', 'flujo.breaker.closed');
