-- Which of these fan-outs have no open branch. A worker that has closed a branch asks after its commit: the look after the commit that becomes
-- visible last sees all branches closed (ADR 9).
SELECT f.run_id, f.address
FROM unnest(%(runs)s::text[], %(addresses)s::text[]) AS f (run_id, address)
WHERE NOT EXISTS (SELECT 1 FROM flujo_scopes c WHERE c.run_id = f.run_id AND c.parent = f.address AND c.status = 'open' OFFSET 0);
