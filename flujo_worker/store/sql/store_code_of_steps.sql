-- Versions of code, and the steps of a plan that have them now. In one order, so that sessions that store the same versions do not deadlock.
WITH stored AS (
    INSERT INTO flujo_code AS c (digest, parts, texts)
    SELECT v.digest, v.parts::jsonb, v.texts::jsonb FROM unnest(%(digests)s::text[], %(parts)s::text[], %(texts)s::text[]) AS v (digest, parts, texts)
    ORDER BY v.digest ON CONFLICT (digest) DO UPDATE SET texts = excluded.texts WHERE c.texts IS NULL
)
INSERT INTO flujo_step_code AS s (fingerprint, path, code)
SELECT %(fingerprint)s::text, v.path, v.code FROM unnest(%(paths)s::text[], %(versions)s::text[]) AS v (path, code)
ORDER BY v.path ON CONFLICT (fingerprint, path) DO UPDATE SET code = excluded.code WHERE s.code <> excluded.code;
