-- Store values by digest, parts by key, and touch existing ones. Values that share parts are stored only if all these exist; missing ones are
-- returned. In order of digests, so that sessions that store the same values do not deadlock. A value that was not touched lately may be deleted at
-- this moment, so it exists only if it could be touched.
WITH touched AS (
    UPDATE flujo_blobs SET touched_at = now()
    WHERE digest = ANY(%(shared)s::text[]) AND touched_at < now() - interval '10 minutes' RETURNING digest
),
missing AS (
    SELECT digest FROM unnest(%(shared)s::text[]) AS s (digest)
    EXCEPT SELECT digest FROM touched
    EXCEPT SELECT digest FROM flujo_blobs WHERE digest = ANY(%(shared)s::text[]) AND touched_at >= now() - interval '10 minutes'
),
stored AS (
    INSERT INTO flujo_blobs (digest, body)
    SELECT b.digest, b.body FROM unnest(%(digests)s::text[], %(bodies)s::bytea[]) AS b (digest, body)
    WHERE NOT EXISTS (SELECT FROM missing) ORDER BY b.digest
    ON CONFLICT (digest) DO UPDATE SET touched_at = now()
)
SELECT digest FROM missing;
