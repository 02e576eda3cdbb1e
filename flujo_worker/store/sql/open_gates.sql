-- Gates that runs wait at which were recorded in a transaction of someone else's have no row to lock yet.
INSERT INTO flujo_gates (name) SELECT name FROM unnest(%(gates)s::text[]) AS g (name) ORDER BY name ON CONFLICT DO NOTHING;
