-- The large values of `new` runs, inserted in one order, so that no two statements wait for each other.
large AS (
    INSERT INTO flujo_blobs (digest, body)
    SELECT b.digest, b.body FROM unnest(%(blob_digests)s::text[], %(blob_bodies)b::bytea[]) AS b (digest, body)
    WHERE EXISTS (SELECT 1 FROM new) ORDER BY b.digest
    ON CONFLICT (digest) DO UPDATE SET touched_at = now()
),
