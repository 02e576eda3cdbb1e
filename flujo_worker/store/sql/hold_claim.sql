-- What a claim under limits judges by, held, so that the next statement sees its current state.
-- Fewer rows than budgets: one has no row yet, and nothing is claimed before whoever asks has made it.
-- Locks in the one order: attempt → its reservations → budgets, by name.
WITH attempt AS MATERIALIZED (SELECT a.key FROM flujo_attempts a WHERE a.key = %(key)s FOR UPDATE),
taken AS (
    SELECT r.scope FROM flujo_reservations r WHERE r.key = %(key)s AND (SELECT count(*) FROM attempt) >= 0 ORDER BY r.scope FOR UPDATE
)
SELECT b.scope FROM flujo_budgets b
WHERE b.scope = ANY(%(scopes)s::text[]) AND (SELECT count(*) FROM taken) >= 0
ORDER BY b.scope FOR UPDATE OF b;
