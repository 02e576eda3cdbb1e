-- The input of the newest run that begins with an encrypted form's header. Only the latest are looked at: no index knows the headers.
SELECT latest.input FROM (SELECT input, created_at FROM flujo_runs ORDER BY created_at DESC LIMIT 1000) latest
WHERE substr(latest.input, 1, length(%(header)s::bytea)) = %(header)s::bytea
ORDER BY latest.created_at DESC LIMIT 1;
