-- The newest events of a run, or all of one of its attempts. Runs without sorts: the planner would sort all events of a run.
SELECT at, attempt, name, level, data FROM flujo_events
WHERE run_id = %(run)s AND (%(attempt)s::text IS NULL OR attempt = %(attempt)s) ORDER BY xid DESC, id DESC LIMIT %(most)s;
