-- The worker processes of one host whose lease lives.
SELECT id, pid FROM flujo_workers WHERE host = %(host)s AND lease_until > now();
