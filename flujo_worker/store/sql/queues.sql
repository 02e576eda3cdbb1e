SELECT DISTINCT a.queue FROM flujo_attempts a
WHERE a.ended_at IS NULL AND a.available_at >= (SELECT live_since FROM flujo_sweeps) AND a.status = 'queued';
