-- Lock the gates of a run that is about to be recorded, always in one order.
INSERT INTO flujo_gates (name) SELECT name FROM unnest(%(gates)s::text[]) AS g (name) ORDER BY name
ON CONFLICT (name) DO UPDATE SET touched_at = now() RETURNING name AS held;
