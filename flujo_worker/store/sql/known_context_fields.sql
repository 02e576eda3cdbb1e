-- The fields that a context model had before, for one who only looks.
SELECT fields::text FROM flujo_context_fields WHERE model = %(model)s::text AND digest <> %(digest)s::text ORDER BY created_at;
