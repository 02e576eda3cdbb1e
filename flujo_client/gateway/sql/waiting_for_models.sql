SELECT split_part(waits_for, ' ', 1) AS guard, substr(waits_for, strpos(waits_for, ' ') + 1) AS model, count(*) AS waiting,
       greatest(extract(epoch FROM min(available_at) - now())::float8, 0) AS next_s
FROM flujo_attempts WHERE ended_at IS NULL AND status = 'ready' AND available_at > now() AND waits_for ~ '^(breaker|rate) '
GROUP BY waits_for ORDER BY count(*) DESC, waits_for LIMIT %(limit)s::int;
