-- The budgets of runs that are deleted: after their reservations, as everybody locks them.
DELETE FROM flujo_budgets WHERE scope = ANY(ARRAY(SELECT 'run:' || run FROM unnest(%(runs)s::text[]) AS r (run)));
