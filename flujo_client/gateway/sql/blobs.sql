-- Values by digest, and the parts that manifests name: a manifest is `p`, a checksum of 64 characters and a JSON list that names parts as {"#": digest}.
WITH wanted AS (SELECT digest, body FROM flujo_blobs WHERE digest = ANY(%(digests)s::text[])),
named AS (
    SELECT DISTINCT 'part:' || (entry ->> '#') AS digest
    FROM wanted,
         jsonb_array_elements(CASE WHEN substr(body, 1, 1) = 'p'::bytea THEN convert_from(substr(body, 66), 'UTF8') ELSE '[]' END::jsonb) AS entry
    WHERE jsonb_typeof(entry) = 'object'
)
SELECT digest, body FROM wanted
UNION ALL SELECT digest, body FROM flujo_blobs JOIN named USING (digest);
