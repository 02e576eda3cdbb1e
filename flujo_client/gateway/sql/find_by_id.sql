SELECT tenant, digest FROM flujo_runs WHERE id = %(run)s;
