    UPDATE flujo_runs r
    SET status = %(run_status)s::text, reason = %(run_reason)s::text, error = %(run_error)s::jsonb, output = %(run_output)s::bytea,
        failed_key = %(run_failed_key)s::text, ended_at = now()
    WHERE r.id = %(run)s::text AND %(run_status)s::text IS NOT NULL AND EXISTS (SELECT 1 FROM live)
    RETURNING pg_notify('flujo_runs', r.id)
