SELECT digest, parts FROM flujo_code WHERE digest IN (SELECT a.code FROM flujo_attempts a WHERE a.run_id = %(run)s);
