-- Runs that a run is linked with, and its child runs: those that failed first.
SELECT id, name, status, false AS is_child FROM flujo_runs WHERE id = ANY(%(linked)s::text[])
UNION ALL
(SELECT id, name, status, true FROM flujo_runs WHERE parent_run = %(run)s
 ORDER BY status IN ('failed', 'expired') DESC, created_at DESC LIMIT %(most)s);
