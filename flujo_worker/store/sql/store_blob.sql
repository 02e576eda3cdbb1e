INSERT INTO flujo_blobs (digest, body) VALUES (%(digest)s, %(body)s)
ON CONFLICT (digest) DO UPDATE SET touched_at = now();
