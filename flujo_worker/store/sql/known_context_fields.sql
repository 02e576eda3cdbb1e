-- The earlier fields of a context model, without recording the present ones.
SELECT fields::text FROM flujo_context_fields WHERE model = %(model)s::text AND digest <> %(digest)s::text ORDER BY created_at;
