-- The answers at a step of a run, in the order of the questions.
SELECT a.question::text, i.answer, i.actor, i.note, extract(epoch FROM i.at)::float8 AS at
FROM flujo_attempts a JOIN flujo_inputs i ON i.attempt = a.key AND i.kind = 'answer'
WHERE a.run_id = %(run)s AND a.address = %(address)s AND a.step = %(step)s AND a.question IS NOT NULL
ORDER BY a.number;
