-- Events of live runs that were restored into a server whose transaction numbers are lower, as by pg_dump: from now on they come before all new
-- ones, among themselves in the order of their ids. A server that has numbered them itself has none such, which is found in a few look-ups.
UPDATE flujo_events e SET xid = '0'
FROM flujo_runs r
WHERE r.ended_at IS NULL AND e.run_id = r.id
  AND EXISTS (SELECT FROM flujo_events f WHERE f.run_id = r.id AND f.xid >= pg_snapshot_xmax(pg_current_snapshot()))
  AND EXISTS (
      SELECT FROM (
          (SELECT xid FROM flujo_events WHERE run_id IS NULL ORDER BY xid DESC LIMIT 1)
          UNION ALL SELECT t.xid FROM (SELECT id FROM flujo_runs WHERE ended_at IS NULL ORDER BY created_at LIMIT 100) s
          CROSS JOIN LATERAL (SELECT xid FROM flujo_events WHERE run_id = s.id ORDER BY xid DESC LIMIT 1) t
      ) sample WHERE sample.xid >= pg_snapshot_xmax(pg_current_snapshot())
  )
