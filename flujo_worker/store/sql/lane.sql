SELECT b.closed_by, (
    SELECT a.key FROM flujo_scopes s JOIN flujo_attempts a ON a.run_id = s.run_id AND a.address = s.address
    WHERE s.run_id = b.run_id AND s.parent = b.parent AND s.place > b.place AND s.lanes -> b.parent = b.lanes -> b.parent
    ORDER BY s.place, a.created_at, a.number LIMIT 1
) AS taken
FROM flujo_scopes b WHERE b.run_id = %(run)s AND b.address = %(branch)s;
