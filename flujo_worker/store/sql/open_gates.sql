-- Create the rows of gates at which runs wait that were recorded in a caller's transaction: they have no row to lock yet.
INSERT INTO flujo_gates (name) SELECT name FROM unnest(%(gates)s::text[]) AS g (name) ORDER BY name ON CONFLICT DO NOTHING;
