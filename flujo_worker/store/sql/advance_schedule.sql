-- Record the result of a schedule's due slots, unless another sweep has moved it on or it was replaced. After a failure it is due in `again_s`.
UPDATE flujo_schedules
SET slot_at = %(next_slot)s::timestamptz, due_at = coalesce(now() + make_interval(secs => %(again_s)s::float8), %(next_due)s::timestamptz),
    last_slot = coalesce(%(last_slot)s::timestamptz, last_slot),
    last_run = CASE WHEN %(last_slot)s::timestamptz IS NULL THEN last_run ELSE %(last_run)s::text END,
    last_error = CASE WHEN %(last_slot)s::timestamptz IS NULL AND %(error)s::text IS NULL THEN last_error ELSE %(error)s::text END,
    failing_since = CASE WHEN %(again_s)s::float8 IS NOT NULL THEN coalesce(failing_since, now()) END
WHERE name = %(schedule)s::text AND slot_at = %(slot_at)s::timestamptz AND timing = %(timing)s::jsonb RETURNING name;
