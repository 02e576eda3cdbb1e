UPDATE flujo_sweeps SET pruned_at = now() WHERE pruned_at <= now() - make_interval(secs => %(every_s)s::float8) RETURNING 1;
