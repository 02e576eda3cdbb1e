    UPDATE flujo_runs r SET status = 'running', started_at = now()
    WHERE r.id = (SELECT run_id FROM claimed) AND r.status = 'queued'
