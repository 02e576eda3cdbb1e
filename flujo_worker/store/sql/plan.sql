SELECT plan::text FROM flujo_pipelines WHERE fingerprint = %(fingerprint)s;
