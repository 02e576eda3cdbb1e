WITH back AS (
    UPDATE flujo_runs SET status = 'running', reason = NULL, parked_for = NULL, parked = NULL, unparked_by = %(worker)s::text
    WHERE id = %(run)s::text AND status = 'parked' RETURNING id
)
INSERT INTO flujo_events (run_id, name) SELECT id, 'run.unparked' FROM back RETURNING 1;
