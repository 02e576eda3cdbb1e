SELECT DISTINCT a.queue FROM flujo_attempts a
WHERE a.ended_at IS NULL AND a.available_at >= (SELECT live_since FROM flujo_sweeps) AND a.available_at < now() + interval '100 years' AND a.status = 'queued';
