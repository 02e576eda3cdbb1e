-- Which of these fan-outs have no open branch. A worker asks after the commit that closed a branch: the last to ask sees all closed (ADR 9).
SELECT f.run_id, f.address FROM unnest(%(runs)s::text[], %(addresses)s::text[]) AS f (run_id, address)
WHERE NOT EXISTS (SELECT 1 FROM flujo_scopes c WHERE c.run_id = f.run_id AND c.parent = f.address AND c.status = 'open' OFFSET 0);
