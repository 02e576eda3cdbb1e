-- Partitions made ahead of time, and those that are over dropped.
SELECT flujo_keep_event_partitions(%(first)s::int, %(last)s::int, %(keep)s::int);
