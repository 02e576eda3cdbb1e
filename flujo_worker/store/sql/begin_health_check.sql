-- Whether a report is to be made now: none has been made in this slot of time, and none is being made.
SELECT s.slot FROM (SELECT to_timestamp(floor(extract(epoch FROM now()) / %(every_s)s::numeric) * %(every_s)s::numeric) AS slot) s
WHERE NOT EXISTS (SELECT 1 FROM flujo_health_reports h WHERE h.slot = s.slot) AND pg_try_advisory_xact_lock(hashtext('flujo.health_check'));
