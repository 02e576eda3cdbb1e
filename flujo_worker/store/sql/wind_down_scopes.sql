WITH held AS (
    SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND status = 'open'
    ORDER BY length(address) - length(replace(address, '/', '')) DESC, address FOR UPDATE
)
UPDATE flujo_scopes s SET status = 'cancelled', closed_by = %(status)s, closed_at = now()
FROM held WHERE s.run_id = %(run)s AND s.address = held.address;
