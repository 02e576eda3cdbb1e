-- The schema of the database, the oldest schema whose code works with it, and the name of its first migration. Before 0.1 it had no `oldest`.
SELECT coalesce(max(v.version), 0) AS version, coalesce(max((to_jsonb(v) ->> 'oldest')::int), 0) AS oldest,
       max(v.name) FILTER (WHERE v.version = 1) AS first
FROM flujo_schema_version v;
