-- The remaining reservations of a run that has ended: for attempts that were lost or cancelled, and whose cost was not reported.
WITH releasing AS (SELECT DISTINCT r.key FROM flujo_reservations r WHERE r.run_id = %(run)s::text AND r.held),
-- include release_held
SELECT count(*) AS released FROM held;
