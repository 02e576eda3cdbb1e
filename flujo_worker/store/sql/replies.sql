SELECT a.question::text, i.answer, i.actor, i.note, extract(epoch FROM i.at)::float8 AS at, extract(epoch FROM i.acted_at - a.created_at)::float8 AS waited_s
FROM flujo_attempts a LEFT JOIN flujo_inputs i ON i.attempt = a.key AND i.kind = 'answer'
WHERE a.run_id = %(run)s AND a.address = %(address)s AND a.step = %(step)s AND a.question IS NOT NULL
  AND (i.attempt IS NOT NULL OR a.status NOT IN ('paused', 'cancelled'))
ORDER BY a.number;
