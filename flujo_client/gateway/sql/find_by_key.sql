SELECT id, digest FROM flujo_runs WHERE tenant = %(tenant)s AND idempotency_key = %(idempotency_key)s;
