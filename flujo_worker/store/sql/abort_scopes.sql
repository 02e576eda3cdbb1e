UPDATE flujo_scopes s SET status = 'cancelled', closed_by = 'abort', closed_at = now(), context = NULL
WHERE s.run_id = %(run)s AND s.address = ANY(%(held)s::text[]) AND NOT EXISTS (
    SELECT 1 FROM flujo_attempts a
    WHERE a.run_id = s.run_id AND a.ended_at IS NULL
      AND (a.address = s.address OR starts_with(a.address, s.address || '/') OR starts_with(a.address, s.address || '#'))
);
