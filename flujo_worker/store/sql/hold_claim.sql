-- Lock the rows that decide a claim under limits, so that the next statement sees their current state. Fewer rows than budgets: one has no
-- row yet, and the caller creates it before the claim. Locks are always taken in this order: attempt → its reservations → budgets, by name.
WITH attempt AS MATERIALIZED (SELECT a.key FROM flujo_attempts a WHERE a.key = %(key)s FOR UPDATE),
taken AS (
    SELECT r.scope FROM flujo_reservations r WHERE r.key = %(key)s AND (SELECT count(*) FROM attempt) >= 0 ORDER BY r.scope FOR UPDATE
)
SELECT b.scope FROM flujo_budgets b
WHERE b.scope = ANY(%(scopes)s::text[]) AND (SELECT count(*) FROM taken) >= 0
ORDER BY b.scope FOR UPDATE OF b;
