    UPDATE flujo_runs r SET status = 'running', started_at = now()
    WHERE r.id = (SELECT run_id FROM claimed) AND r.ended_at IS NULL AND r.status NOT IN ('running', 'parked')
