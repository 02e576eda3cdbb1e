SELECT s.run_id, s.address
FROM unnest(%(runs)s::text[], %(addresses)s::text[]) AS f (run_id, address) JOIN flujo_scopes s USING (run_id, address)
WHERE s.aborted;
