-- Begin a search for unreferenced large values: at most once per interval, after the previous search has ended, and if any value is old enough.
UPDATE flujo_sweeps SET marking_since = now(), marked_to = '', swept_to = ''
WHERE marking_since < now() - make_interval(secs => %(every_s)s::float8) AND marked_to IS NULL AND swept_to IS NULL
  AND EXISTS (SELECT 1 FROM flujo_blobs WHERE touched_at < now() - make_interval(secs => %(unused_s)s::float8))
RETURNING 1;
