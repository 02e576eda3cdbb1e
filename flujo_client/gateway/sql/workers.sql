SELECT id, host, pid, build, slots, started_at, lease_until > now() AS is_live FROM flujo_workers
WHERE lease_until > now() - interval '1 day' ORDER BY started_at DESC;
