SELECT pid FROM flujo_workers WHERE lease_until > now() AND ended_at IS NULL;
