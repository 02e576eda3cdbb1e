WITH back AS (
    UPDATE flujo_runs SET status = 'running', reason = NULL, parked_for = NULL WHERE id = %(run)s AND status = 'parked' RETURNING id
)
INSERT INTO flujo_events (run_id, name) SELECT id, 'run.unparked' FROM back RETURNING 1;
