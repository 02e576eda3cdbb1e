    INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, available_at, guidance, units_from, pauses, question, waits_for, status, error, reason, ended_at,
                                fence, claim_id, worker, started_at)
    SELECT n.key, n.run, n.address, n.step, n.number, n.kind, n.queue, coalesce(CASE WHEN n.until IS NOT NULL THEN greatest(to_timestamp(n.until), now()) END, now() + make_interval(secs => n.after_s), 'infinity'), n.guidance, n.units_from, n.pauses,
           n.question::jsonb, n.waits_for, CASE WHEN n.is_claimed THEN 'running' ELSE n.status END, n.error::jsonb, CASE WHEN n.status = 'failed' THEN 'error' END, CASE WHEN n.status = 'failed' THEN now() END,
           n.is_claimed::int, CASE WHEN n.is_claimed THEN gen_random_uuid() END, CASE WHEN n.is_claimed THEN n.claimed_by END, CASE WHEN n.is_claimed THEN now() END
    FROM (
        SELECT f.*, m.run, coalesce(f.claimed_by IS NOT NULL AND (
            SELECT w.lease_until > now() FROM flujo_workers w WHERE w.id = f.claimed_by
        ) AND (
            SELECT r.status = 'running' AND (r.deadline_at IS NULL OR r.deadline_at > now()) FROM flujo_runs r WHERE r.id = m.run
        ), false) AS is_claimed
        FROM (
            SELECT unnest(%(next_of)s::int[]) AS of, unnest(%(next_key)s::text[]) AS key, unnest(%(next_address)s::text[]) AS address,
                   unnest(%(next_step)s::text[]) AS step, unnest(%(next_number)s::int[]) AS number, unnest(%(next_kind)s::text[]) AS kind,
                   unnest(%(next_queue)s::text[]) AS queue, unnest(%(next_after_s)s::float8[]) AS after_s, unnest(%(next_until)s::float8[]) AS until,
                   unnest(%(next_guidance)s::text[]) AS guidance, unnest(%(next_units_from)s::int[]) AS units_from,
                   unnest(%(next_pauses)s::int[]) AS pauses, unnest(%(next_question)s::text[]) AS question, unnest(%(next_waits_for)s::text[]) AS waits_for,
                   unnest(%(next_status)s::text[]) AS status, unnest(%(next_error)s::text[]) AS error,
                   unnest(%(next_claimed_by)s::text[]) AS claimed_by
        ) f JOIN merged m ON m.place = f.of
    ) n
    RETURNING key, claim_id, CASE WHEN status = 'paused' THEN pg_notify('flujo_runs', run_id) END
