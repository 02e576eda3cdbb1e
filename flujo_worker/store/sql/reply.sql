SELECT a.question::text, i.answer, i.actor, i.note, extract(epoch FROM i.at)::float8 AS at, extract(epoch FROM i.acted_at - a.created_at)::float8 AS waited_s
FROM flujo_attempts a LEFT JOIN flujo_inputs i ON i.attempt = a.key AND i.kind = 'answer'
WHERE a.key = %(key)s AND a.question IS NOT NULL;
