-- Versions of code, each under its digest. In order of their digests, so that sessions that store the same versions do not deadlock.
INSERT INTO flujo_code (digest, parts)
SELECT v.digest, v.parts::jsonb FROM unnest(%(digests)s::text[], %(parts)s::text[]) AS v (digest, parts)
ORDER BY v.digest ON CONFLICT DO NOTHING;
