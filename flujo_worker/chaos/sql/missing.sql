SELECT id FROM unnest(%(acknowledged)s::text[]) AS id WHERE NOT EXISTS (SELECT FROM flujo_runs r WHERE r.id = id.id);
