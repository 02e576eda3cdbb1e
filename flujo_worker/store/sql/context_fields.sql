WITH mine AS (
    INSERT INTO flujo_context_fields (model, digest, fields) VALUES (%(model)s::text, %(digest)s::text, %(fields)s::text::jsonb) ON CONFLICT DO NOTHING
)
SELECT fields::text FROM flujo_context_fields WHERE model = %(model)s::text AND digest <> %(digest)s::text ORDER BY created_at;
