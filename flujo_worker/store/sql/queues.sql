SELECT DISTINCT queue FROM flujo_attempts WHERE ended_at IS NULL AND status = 'queued';
