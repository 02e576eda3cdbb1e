SELECT body, fingerprint FROM flujo_schedules WHERE name = %(schedule)s::text;
