UPDATE flujo_sweeps SET swept_at = now(), worker = %(worker)s
WHERE swept_at < now() - make_interval(secs => %(every_s)s)
RETURNING 1;
