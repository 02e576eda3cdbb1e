    UPDATE flujo_runs r
    SET status = e.status, reason = e.reason, error = e.error::jsonb, output = e.output, failed_key = e.failed_key, ended_at = now()
    FROM (
        SELECT unnest(%(run_of)s::int[]) AS of, unnest(%(run_status)s::text[]) AS status, unnest(%(run_reason)s::text[]) AS reason,
               unnest(%(run_error)s::text[]) AS error, unnest(%(run_output)s::bytea[]) AS output, unnest(%(run_failed_key)s::text[]) AS failed_key
    ) e JOIN merged m ON m.place = e.of
    WHERE r.id = m.run AND r.id = ANY(ARRAY(SELECT id FROM ending)) RETURNING pg_notify('flujo_runs', r.id)
