SELECT 'scope ' || s.run_id || ' ''' || s.address || ''' of a run that is ' || r.status || ' is open' AS what
FROM flujo_scopes s JOIN flujo_runs r ON r.id = s.run_id WHERE r.metadata ->> 'chaos' = %(monkey)s AND s.status = 'open';
