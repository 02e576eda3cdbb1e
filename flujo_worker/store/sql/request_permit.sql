-- Let an attempt through, or let it wait, under the lock of hold_limit.sql. One that asks for the first time leaves free places to those that wait.
WITH known AS (SELECT 1 FROM flujo_permits WHERE key = %(key)s::text AND name = %(name)s::text),
in_use AS (
-- include permits_in_use
      AND p.name = %(name)s::text
),
waiting AS (
    SELECT count(*) FROM (
-- include permits_waiting
      AND p.name = %(name)s::text AND NOT EXISTS (SELECT 1 FROM known)
    LIMIT %(at_once)s::int
    ) AS ahead
),
judged AS (SELECT i.count AS in_use, i.count + w.count < %(at_once)s::int AS is_granted FROM in_use i, waiting w),
written AS (
    INSERT INTO flujo_permits (key, name, fence)
    SELECT %(key)s::text, %(name)s::text, CASE WHEN is_granted THEN %(fence)s::int END FROM judged
    ON CONFLICT (key) DO UPDATE SET name = excluded.name, fence = excluded.fence, offered_at = NULL
)
SELECT in_use, is_granted FROM judged;
