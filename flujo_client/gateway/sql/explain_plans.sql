SELECT fingerprint, plan FROM flujo_pipelines WHERE fingerprint = ANY(%(fingerprints)s::text[]);
