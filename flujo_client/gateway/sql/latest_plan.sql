SELECT plan FROM flujo_pipelines WHERE reference = %(reference)s ORDER BY created_at DESC LIMIT 1;
