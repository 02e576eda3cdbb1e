UPDATE flujo_batches SET handle = coalesce(%(handle)s::jsonb, handle), due_at = now() + make_interval(secs => %(after_s)s::float8), key = NULL, claim_id = NULL
WHERE id = %(batch)s::uuid AND claim_id = %(claim_id)s::uuid;
