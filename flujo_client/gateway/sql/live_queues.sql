SELECT DISTINCT queue FROM flujo_attempts WHERE ended_at IS NULL AND status IN ('ready', 'queued', 'running') ORDER BY queue;
