SELECT reference, plan FROM flujo_pipelines WHERE starts_with(fingerprint, %(fingerprint)s::text) ORDER BY fingerprint LIMIT 2;
