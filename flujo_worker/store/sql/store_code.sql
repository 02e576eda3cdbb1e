-- Versions of code, each under its digest. In order of their digests, so that two who store the same do not wait for each other.
INSERT INTO flujo_code (digest, parts)
SELECT v.digest, v.parts::jsonb FROM unnest(%(digests)s::text[], %(parts)s::text[]) AS v (digest, parts)
ORDER BY v.digest ON CONFLICT DO NOTHING;
