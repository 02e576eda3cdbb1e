SELECT id, reference, fingerprint FROM flujo_runs WHERE status = 'parked' ORDER BY created_at LIMIT %(limit)s;
