-- A page of the children of each of these containers: those in its state, if one is given. `held` never ran, or is still to come.
SELECT c.* FROM unnest(%(at)s::text[], %(only)s::text[]) AS o (at, state)
CROSS JOIN LATERAL (
    SELECT s.address, s.parent, s.name, CASE WHEN s.held THEN 'held' ELSE s.status END AS status, s.opened_at, s.closed_at,
           concat_ws(': ', s.error ->> 'type_name', s.error ->> 'message') AS fault
    FROM flujo_scopes s
    WHERE s.run_id = %(run)s AND s.parent = o.at AND s.kind = 'sequence'
      AND (o.state = '' OR o.state = CASE WHEN s.held THEN 'held' ELSE s.status END)
    ORDER BY s.place LIMIT %(most)s OFFSET %(skip)s
) c;
