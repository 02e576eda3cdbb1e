SELECT digest, parts::text FROM flujo_code WHERE digest = ANY(%(digests)s::text[]);
