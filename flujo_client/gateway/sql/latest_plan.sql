SELECT plan FROM flujo_pipelines WHERE reference = %(reference)s ORDER BY greatest(adopted_at, created_at) DESC LIMIT 1;
