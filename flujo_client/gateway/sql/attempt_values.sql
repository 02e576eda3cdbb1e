SELECT input, output, answer FROM flujo_attempts WHERE key = %(key)s;
