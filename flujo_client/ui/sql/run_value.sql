-- A value of a run; its output or its input.
SELECT CASE WHEN %(is_output)s THEN output ELSE input END AS body FROM flujo_runs WHERE id = %(run)s;
