SELECT digest, body FROM flujo_blobs WHERE digest = ANY(%(digests)s::text[]);
