-- The schema of the database, the oldest schema whose code works with it, and the name of its first migration. A database from before 0.1
-- may have no column `oldest`.
SELECT coalesce(max(v.version), 0) AS version, coalesce(max((to_jsonb(v) ->> 'oldest')::int), 0) AS oldest,
       max(v.name) FILTER (WHERE v.version = 1) AS first
FROM flujo_schema_version v;
