-- All runs up to this one are marked; null: all there are. Of two who marked the same, one advances.
UPDATE flujo_sweeps SET marked_to = %(to)s::text WHERE marking_since = %(since)s::timestamptz AND marked_to = %(from)s::text;
