-- Locks a run's current state, in the one order: attempts → scopes, deepest first → run. Each part waits for the one before.
WITH attempts AS (SELECT key FROM flujo_attempts WHERE run_id = %(run)s::text AND ended_at IS NULL ORDER BY key FOR UPDATE),
scopes AS (
    SELECT address FROM flujo_scopes
    WHERE run_id = %(run)s::text AND status = 'open' AND (SELECT count(*) FROM attempts) >= 0
    ORDER BY length(address) DESC, address FOR UPDATE
)
SELECT 1 FROM flujo_runs WHERE id = %(run)s::text AND (SELECT count(*) FROM scopes) >= 0 FOR UPDATE;
