SELECT 1 FROM flujo_runs WHERE id = %(run)s AND status IN ('queued', 'running', 'parked');
