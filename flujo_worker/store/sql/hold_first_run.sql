-- Lock the root run of a tree, which fails if a limit is passed, before budgets: a transaction that ends it locks it before them too.
SELECT f.id FROM flujo_runs f WHERE f.id = (SELECT r.limits ->> 'run' FROM flujo_runs r WHERE r.id = %(run)s::text) FOR NO KEY UPDATE;
