-- The other context models that a pipeline had, by its plans.
SELECT DISTINCT o.plan ->> 'context_model' AS model
FROM flujo_pipelines p JOIN flujo_pipelines o ON o.reference = p.reference OR o.name = p.name
WHERE p.fingerprint = %(fingerprint)s::text AND o.plan ->> 'context_model' <> p.plan ->> 'context_model';
