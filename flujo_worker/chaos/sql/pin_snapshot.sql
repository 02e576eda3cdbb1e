-- A transaction with an id and a snapshot: vacuum may not remove anything that was deleted after it.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SELECT pg_current_xact_id();
