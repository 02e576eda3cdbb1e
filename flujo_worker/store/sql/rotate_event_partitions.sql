SELECT flujo_keep_event_partitions(%(first)s::int, %(last)s::int, %(keep)s::int);
