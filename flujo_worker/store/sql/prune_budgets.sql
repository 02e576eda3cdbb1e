-- Delete the budgets of deleted runs: after their reservations, in the order of locks.
DELETE FROM flujo_budgets WHERE scope = ANY(ARRAY(SELECT 'run:' || run FROM unnest(%(runs)s::text[]) AS r (run)));
