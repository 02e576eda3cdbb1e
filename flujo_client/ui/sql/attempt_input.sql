-- What an attempt began with, if its row does not hold that: the output of the step before it, else, of a run's first step, the run's input.
SELECT output AS body FROM flujo_attempts WHERE key = ANY(%(before)s::text[]) AND status = 'succeeded'
UNION ALL SELECT output FROM flujo_scopes WHERE run_id = %(run)s AND address = %(scope)s AND status = 'succeeded'
UNION ALL SELECT input FROM flujo_runs WHERE id = %(run)s AND %(is_first)s
LIMIT 1;
