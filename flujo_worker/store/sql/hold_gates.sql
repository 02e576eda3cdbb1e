-- Lock gates, but wait for none: where a run is just being recorded, the next admission looks again.
SELECT name, turns::text FROM flujo_gates WHERE name = ANY(%(gates)s::text[]) ORDER BY name FOR NO KEY UPDATE SKIP LOCKED;
