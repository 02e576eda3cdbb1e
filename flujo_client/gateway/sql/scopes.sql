SELECT address, parent, kind, step, name, place, status, output, error, metadata, opened_at, closed_at, lanes
FROM flujo_scopes
WHERE run_id = %(run)s
ORDER BY opened_at, address;
