SELECT 1 FROM flujo_attempts
WHERE run_id = %(run)s AND address = %(address)s AND ended_at IS NULL AND kind = 'join' AND status IN ('ready', 'queued', 'running');
