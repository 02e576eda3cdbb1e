UPDATE flujo_schedules SET is_paused = true, changed_at = now() WHERE name = %(schedule)s::text RETURNING name;
