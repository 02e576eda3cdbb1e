-- Places that are no longer held: of runs that have ended, or whose time is over; a time that has not begun ends with its run. There are no more places than live runs.
DELETE FROM flujo_gate_places d
USING (
    SELECT p.gate, p.run_id FROM flujo_gate_places p
    WHERE p.until <= now() OR (coalesce(p.until, 'infinity') = 'infinity' AND NOT EXISTS (SELECT 1 FROM flujo_runs r WHERE r.id = p.run_id AND r.ended_at IS NULL OFFSET 0))
    FOR UPDATE SKIP LOCKED
) free
WHERE d.gate = free.gate AND d.run_id = free.run_id;
