-- A schedule fires again, from its next slot on: those of the pause are over.
UPDATE flujo_schedules SET is_paused = false, slot_at = %(slot_at)s::timestamptz, due_at = %(due_at)s::timestamptz, failing_since = NULL, changed_at = now()
WHERE name = %(schedule)s::text AND timing = %(timing)s::jsonb RETURNING name;
