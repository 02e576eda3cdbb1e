-- The columns that hold packed values, which digests are not, and how many blocks their tables have.
SELECT c.relname AS table_name, a.attname AS column_name, pg_relation_size(c.oid) / current_setting('block_size')::int AS blocks
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND starts_with(c.relname, 'flujo_') AND a.atttypid = 'bytea'::regtype
  AND a.attname <> 'digest'
ORDER BY 1, 2
