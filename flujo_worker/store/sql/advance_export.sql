UPDATE flujo_exports SET positions = %(positions)s::jsonb, refused = refused + %(refused)s::int, looked_at = now()
WHERE worker = %(worker)s::text RETURNING 1;
