SELECT 1 FROM flujo_attempts
WHERE run_id = %(run)s AND address = %(address)s AND kind = 'join' AND status IN ('ready', 'queued', 'running');
