-- A separate clock for a test database: `now()` is found in the schema flujo_clock before the one of pg_catalog, which then has to be named
-- in the search path. No statement of the product differs. Defaults of columns were bound to pg_catalog's when their tables were made.
CREATE SCHEMA flujo_clock;
CREATE TABLE flujo_clock.clock (ahead interval NOT NULL);
INSERT INTO flujo_clock.clock VALUES ('0');
CREATE FUNCTION flujo_clock.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT pg_catalog.now() + ahead FROM flujo_clock.clock';
GRANT USAGE ON SCHEMA flujo_clock TO PUBLIC;
GRANT SELECT ON flujo_clock.clock TO PUBLIC;
DO $$
DECLARE
    path text := current_setting('search_path') || ', flujo_clock, pg_catalog';
    stamped record;
BEGIN
    EXECUTE format('ALTER DATABASE %I SET search_path = %s', current_database(), path);
    FOR stamped IN
        SELECT d.adrelid::regclass::text AS named, a.attname FROM pg_attrdef d
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.adrelid::regclass::text LIKE 'flujo%' AND pg_get_expr(d.adbin, d.adrelid) = 'now()'
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT flujo_clock.now()', stamped.named, stamped.attname);
    END LOOP;
END $$;
-- Sessions that are open have the old search path: their processes connect again.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
