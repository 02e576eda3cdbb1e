-- The notices to a run's coordinators, and the answers they got, in the order of their commits. Outputs that a retry took over are another run's.
SELECT row_number() OVER (ORDER BY created_at, number) AS made, key, address, step, number, kind, status, reason, error, queue, answers FROM flujo_attempts
WHERE run_id = %(run)s AND metadata ->> 'taken_over_from' IS NULL ORDER BY coalesce(ended_at, 'infinity'), created_at, number;
