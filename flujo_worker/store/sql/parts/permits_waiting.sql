SELECT p.key, p.turn, p.offered_at FROM flujo_permits p
    JOIN flujo_attempts a ON a.key = p.key AND a.status IN ('ready', 'queued') JOIN flujo_runs r ON r.id = a.run_id AND
-- include open_run
    WHERE p.fence IS NULL AND p.key IS DISTINCT FROM %(key)s::text
