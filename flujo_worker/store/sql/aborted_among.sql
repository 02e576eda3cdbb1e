SELECT f.run_id, f.address FROM unnest(%(runs)s::text[], %(addresses)s::text[]) AS f (run_id, address)
WHERE (SELECT s.aborted FROM flujo_scopes s WHERE s.run_id = f.run_id AND s.address = f.address);
