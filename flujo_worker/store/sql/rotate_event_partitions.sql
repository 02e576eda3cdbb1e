-- Partitions made ahead of time, and those that are over dropped (migration 0008).
SELECT flujo_keep_event_partitions(%(first)s::int, %(last)s::int, %(keep)s::int);
