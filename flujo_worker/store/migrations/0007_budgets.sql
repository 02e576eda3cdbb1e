-- Budgets: what attempts under limits have reserved, and what they spent. Older code knows no limits and touches neither table. Dollars are
-- numeric, because a limit must hold to the last digit; these columns are still empty.

ALTER TABLE flujo_budgets
    ALTER COLUMN limit_usd TYPE numeric,
    ALTER COLUMN settled_usd TYPE numeric,
    ALTER COLUMN reserved_usd TYPE numeric,
    ALTER COLUMN overrun_usd TYPE numeric;

-- One row for each budget that an attempt reserved from. It stays when the reservation is released, so that the cost of a later outcome can
-- still be booked.
CREATE TABLE flujo_reservations (
    key    text NOT NULL,
    scope  text NOT NULL,
    run_id text NOT NULL,
    usd    numeric NOT NULL,
    tokens bigint NOT NULL,
    held   boolean NOT NULL DEFAULT true,
    PRIMARY KEY (key, scope)
);
CREATE INDEX flujo_reservations_held ON flujo_reservations (run_id) WHERE held;
