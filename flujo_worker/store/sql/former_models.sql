-- The other context models that a pipeline had, by its plans. Pipelines that share only a name have nothing to do with each other.
SELECT DISTINCT o.plan ->> 'context_model' AS model FROM flujo_pipelines p JOIN flujo_pipelines o USING (reference)
WHERE p.fingerprint = %(fingerprint)s::text AND o.plan ->> 'context_model' <> p.plan ->> 'context_model';
