-- Whether to make a report now: this time slot has none, and no worker is making one.
SELECT s.slot FROM (SELECT to_timestamp(floor(extract(epoch FROM now()) / %(every_s)s::numeric) * %(every_s)s::numeric) AS slot) s
WHERE NOT EXISTS (SELECT 1 FROM flujo_health_reports h WHERE h.slot = s.slot) AND pg_try_advisory_xact_lock(hashtext('flujo.health_check'));
