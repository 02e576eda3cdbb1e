-- The different marks of the keys of clients. Only the latest runs are looked at.
SELECT DISTINCT unnest(latest.key_marks) FROM (SELECT key_marks FROM flujo_runs ORDER BY created_at DESC LIMIT 10000) latest;
