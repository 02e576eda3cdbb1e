SELECT plan FROM flujo_pipelines WHERE fingerprint = %(fingerprint)s;
