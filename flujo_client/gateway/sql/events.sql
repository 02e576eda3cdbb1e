-- A run's events after a cursor. If the caller reads on, a live run returns only events before which no other can appear any more: every
-- transaction below has ended, or this one began so long ago that none of ours is still open.
SELECT xid::text || '-' || id AS cursor, id, at, run_id, attempt, name, level, data FROM flujo_events
WHERE run_id = %(run)s AND (xid, id) > (%(xid)s::text::xid8, %(id)s)
  AND (
    NOT %(settled)s
    OR xid < pg_snapshot_xmin(pg_current_snapshot())
    OR written_at < now() - interval '10 s'
    OR NOT EXISTS (SELECT 1 FROM flujo_runs WHERE id = %(run)s AND ended_at IS NULL)
  )
ORDER BY xid, id LIMIT %(limit)s;
