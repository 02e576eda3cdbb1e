SELECT DISTINCT queue FROM flujo_attempts WHERE status = 'queued';
