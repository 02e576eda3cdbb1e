-- Whether the clock is there and counts in this session, and whether the database may have one: it has had no runs.
SELECT to_regproc('flujo_clock.now') IS NOT NULL AS is_installed, to_regproc('now') IS NOT DISTINCT FROM to_regproc('flujo_clock.now') AS is_used,
       EXISTS (SELECT FROM flujo_runs) AS has_runs
