DELETE FROM flujo_schedules WHERE name = %(schedule)s::text RETURNING name;
