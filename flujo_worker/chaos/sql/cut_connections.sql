SELECT count(pg_terminate_backend(pid)) AS cut FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %(application)s AND pid <> pg_backend_pid();
