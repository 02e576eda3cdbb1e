-- One report for each slot, and the newest of them all. If another was stored since this snapshot, Postgres aborts, and the retry finds that one.
WITH old AS (DELETE FROM flujo_health_reports WHERE id <= (SELECT id FROM flujo_health_reports ORDER BY id DESC OFFSET %(keep)s::bigint - 1 LIMIT 1))
INSERT INTO flujo_health_reports (slot, report) VALUES (%(slot)s, %(report)s::json) ON CONFLICT (slot) DO NOTHING;
