-- Partitions made ahead of time, and those that are over dropped (migration 0008).
SELECT made, dropped FROM flujo_keep_event_partitions(%(ahead)s::int, %(keep)s::int);
