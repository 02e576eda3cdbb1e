    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at, guidance, question, status, error, reason, ended_at)
    SELECT n.key, m.run, n.address, n.step, n.number, n.kind, n.queue, coalesce(now() + make_interval(secs => n.after_s), 'infinity'), n.guidance,
           n.question::jsonb, n.status, n.error::jsonb, CASE WHEN n.status = 'failed' THEN 'error' END, CASE WHEN n.status = 'failed' THEN now() END
    FROM (
        SELECT unnest(%(next_of)s::int[]) AS of, unnest(%(next_key)s::text[]) AS key, unnest(%(next_address)s::text[]) AS address,
               unnest(%(next_step)s::text[]) AS step, unnest(%(next_number)s::int[]) AS number, unnest(%(next_kind)s::text[]) AS kind,
               unnest(%(next_queue)s::text[]) AS queue, unnest(%(next_after_s)s::float8[]) AS after_s,
               unnest(%(next_guidance)s::text[]) AS guidance, unnest(%(next_question)s::text[]) AS question,
               unnest(%(next_status)s::text[]) AS status, unnest(%(next_error)s::text[]) AS error
    ) n JOIN merged m ON m.place = n.of
    RETURNING CASE WHEN status = 'paused' THEN pg_notify('flujo_runs', run_id) END
