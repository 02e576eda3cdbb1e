-- A transaction with a number of its own and a snapshot: vacuum may remove nothing that was deleted after it.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SELECT pg_current_xact_id();
