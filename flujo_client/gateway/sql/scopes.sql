-- A run's scopes, closed ones with their contexts; where a child run was begun, with what it and its own child runs have spent.
WITH RECURSIVE kin (at, id) AS (
    SELECT parent_address, id FROM flujo_runs WHERE parent_run = %(run)s AND parent_address IS NOT NULL
    UNION ALL SELECT kin.at, c.id FROM kin JOIN flujo_runs c ON c.parent_run = kin.id AND c.parent_address IS NOT NULL
),
spent AS (
    SELECT kin.at, sum(x.input_tokens + x.output_tokens) AS tokens, sum(x.cost_usd) AS cost_usd
    FROM kin JOIN flujo_spends x ON x.run_id = kin.id GROUP BY kin.at
)
SELECT s.address, s.parent, s.kind, s.step, s.name, s.place, s.status, s.output, s.error, s.metadata, s.opened_at, s.closed_at, s.lanes,
       CASE WHEN s.status = 'succeeded' AND s.parent IS NOT NULL THEN s.context END AS context,
       coalesce(spent.tokens, 0)::bigint AS tokens, coalesce(spent.cost_usd, 0)::float8 AS cost_usd
FROM flujo_scopes s LEFT JOIN spent ON spent.at = s.address WHERE s.run_id = %(run)s ORDER BY s.opened_at, s.address;
