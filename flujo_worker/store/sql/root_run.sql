SELECT limits ->> 'run' AS root FROM flujo_runs WHERE id = %(run)s;
