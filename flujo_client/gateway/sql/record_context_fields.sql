-- The fields that a context model has where its pipeline is enqueued: workers compare contexts by them.
INSERT INTO flujo_context_fields (model, digest, fields) VALUES (%(model)s::text, %(digest)s::text, %(fields)s::text::jsonb) ON CONFLICT DO NOTHING;
