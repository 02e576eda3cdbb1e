definition AS (
    INSERT INTO flujo_pipelines (fingerprint, reference, name, version, plan, hooked)
    VALUES (%(fingerprint)s::text, %(reference)s::text, %(name)s::text, %(version)s::text, %(plan)s::jsonb, %(hooked)s::bool) ON CONFLICT DO NOTHING
),
