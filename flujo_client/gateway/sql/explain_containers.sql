-- The kinds of containers that number their children, and how many children a map has: the place of its first is 0, or 1 if they run one by one.
SELECT s.run_id, s.address, s.kind AS around,
       CASE WHEN s.kind = 'map' THEN (SELECT max(c.place) - min(c.place) + 1 FROM flujo_scopes c WHERE c.run_id = s.run_id AND c.parent = s.address) END AS siblings
FROM unnest(%(runs)s::text[], %(addresses)s::text[]) AS o (run_id, address) JOIN flujo_scopes s ON s.run_id = o.run_id AND s.address = o.address;
