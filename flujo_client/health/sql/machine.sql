-- Problems of the infrastructure, from Postgres alone, each with its count, the age of the oldest, and some names.
WITH
-- Attempts that could begin: since they were due, or since their worker was lost.
waiting AS (
    SELECT a.key AS name, a.queue, extract(epoch FROM now() - greatest(a.available_at, a.started_at, w.lease_until))::float8 AS age_s
    FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id AND r.status IN ('queued', 'running') AND r.cancel_requested_at IS NULL
    LEFT JOIN flujo_workers w ON w.id = a.worker
    WHERE a.ended_at IS NULL AND a.status IN ('ready', 'queued') AND a.available_at <= now()
),
found AS (
    SELECT 'waiting' AS what, name, age_s FROM waiting
    UNION ALL SELECT 'stuck_runs', r.id, extract(epoch FROM now() - m.since)::float8
    FROM flujo_runs r
    CROSS JOIN LATERAL (
        -- Runs that ignore a cancel or their deadline; or that have nothing to do, nothing to wait for, and no open question.
        SELECT least(r.cancel_requested_at, r.deadline_at) AS since
        WHERE least(r.cancel_requested_at, r.deadline_at) <= now()
        UNION ALL SELECT greatest(
            r.created_at, (SELECT max(a.ended_at) FROM flujo_attempts a WHERE a.run_id = r.id),
            (SELECT max(s.closed_at) FROM flujo_scopes s WHERE s.run_id = r.id), (SELECT max(k.ended_at) FROM flujo_runs k WHERE k.parent_run = r.id)
        )
        WHERE r.status <> 'parked' AND coalesce(least(r.cancel_requested_at, r.deadline_at) > now(), true)
          AND NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.run_id = r.id AND a.ended_at IS NULL)
          AND NOT EXISTS (SELECT 1 FROM flujo_runs k WHERE k.parent_run = r.id AND k.status IN ('queued', 'running', 'parked'))
    ) m
    WHERE r.status IN ('queued', 'running', 'parked') AND m.since < now() - make_interval(secs => %(stuck_s)s::float8)
    UNION ALL SELECT 'parked_runs', r.id, extract(epoch FROM now() - r.created_at)::float8 FROM flujo_runs r WHERE r.status = 'parked'
    UNION ALL
    -- The parked runs that only the code of their plan may continue, by that plan; no live worker is known to have it.
    SELECT 'pinned_runs', p.reference || ' ' || left(p.fingerprint, 12) || coalesce(', build ' || p.build, ''),
           extract(epoch FROM now() - r.created_at)::float8
    FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint
    WHERE r.status = 'parked' AND coalesce(p.plan ->> 'on_change', %(on_change)s::text) = 'pin'
      AND NOT EXISTS (
          SELECT 1 FROM flujo_workers w
          WHERE (w.code_build = p.build OR p.fingerprint = ANY(w.plans)) AND w.lease_until > now() AND w.ended_at IS NULL
      )
    UNION ALL
    -- Their worker is gone, which its lease and the sweeps after it should have reported.
    SELECT 'orphans', a.key, extract(epoch FROM now() - coalesce(w.lease_until, a.started_at))::float8
    FROM flujo_attempts a LEFT JOIN flujo_workers w ON w.id = a.worker
    WHERE a.ended_at IS NULL AND a.status = 'running' AND coalesce(w.lease_until, a.started_at) < now() - make_interval(secs => %(orphan_s)s::float8)
    UNION ALL SELECT 'dead_workers', w.id, extract(epoch FROM now() - w.lease_until)::float8
    FROM flujo_workers w
    WHERE w.ended_at IS NULL AND w.lease_until < now() - make_interval(secs => %(orphan_s)s::float8)
      AND w.lease_until > now() - make_interval(secs => %(dead_s)s::float8)
    UNION ALL
    -- A reservation is released at the end of its attempt, or, for a lost or cancelled attempt, at the end of the run. A budget holds their sum.
    SELECT 'reservation_leaks', h.key || ' of ' || h.scope, extract(epoch FROM now() - coalesce(a.ended_at, r.ended_at))::float8
    FROM flujo_reservations h LEFT JOIN flujo_attempts a ON a.key = h.key LEFT JOIN flujo_runs r ON r.id = h.run_id
    WHERE h.held
      AND (r.id IS NULL OR a.key IS NULL OR r.ended_at IS NOT NULL OR a.status = 'succeeded' OR (a.status = 'failed' AND a.reason <> 'lost'))
    UNION ALL SELECT 'reservation_leaks', b.scope, NULL
    FROM (  -- most budgets are of runs that ended: nothing is reserved, and nothing has to be compared
        SELECT scope FROM flujo_budgets WHERE (reserved_usd, reserved_tokens) <> (0, 0)
        UNION SELECT scope FROM flujo_reservations WHERE held
    ) u
    JOIN flujo_budgets b ON b.scope = u.scope
    LEFT JOIN (SELECT scope, sum(usd) AS usd, sum(tokens) AS tokens FROM flujo_reservations WHERE held GROUP BY scope) h ON h.scope = b.scope
    WHERE (b.reserved_usd, b.reserved_tokens::numeric) <> (coalesce(h.usd, 0), coalesce(h.tokens, 0))
    UNION ALL
    -- Hook calls that are due and not made yet: no worker has their code, or they hang and take their workers with them (ADR 22).
    SELECT 'owed_hooks', c.run_id || ' ' || c.payload, extract(epoch FROM now() - c.created_at)::float8 FROM flujo_hook_calls c
    UNION ALL SELECT 'open_breakers', model, since_s FROM (
-- include open_breakers
    ) AS breakers
),
-- How runs ended in the window, and in the time before that it is compared with, by the indexes on their ends and on background runs. A limit
-- takes the newest ends instead. Child runs are left out: their parents fail with them.
names AS (SELECT DISTINCT name FROM flujo_pipelines WHERE %(pipeline)s::text IS NULL OR name = %(pipeline)s::text OR reference = %(pipeline)s::text),
parts AS (
    SELECT 'window' AS part, now() - make_interval(secs => coalesce(%(hours)s::float8, 876000) * 3600) AS since, now() AS until
    UNION ALL
    SELECT 'baseline', now() - make_interval(secs => (%(hours)s::float8 + %(baseline_hours)s::float8) * 3600), now() - make_interval(secs => %(hours)s::float8 * 3600)
    WHERE %(hours)s::float8 IS NOT NULL AND %(limit)s::bigint IS NULL
),
ended AS (
    SELECT p.part, n.name, w.status, c.count, 0::bigint AS retried
    FROM parts p CROSS JOIN names n CROSS JOIN (VALUES ('succeeded')) w (status)
    CROSS JOIN LATERAL (
        SELECT count(*) AS count FROM flujo_runs r
        WHERE r.name = n.name AND r.status = w.status AND r.ended_at > p.since AND r.ended_at <= p.until AND r.parent_run IS NULL
    ) c
    WHERE %(limit)s::bigint IS NULL AND c.count > 0
    UNION ALL SELECT p.part, n.name, w.status, c.count, c.retried
    FROM parts p CROSS JOIN names n CROSS JOIN (VALUES ('failed'), ('cancelled'), ('expired')) w (status)
    CROSS JOIN LATERAL (
        SELECT count(*) AS count, count(r.retried_as) AS retried FROM flujo_runs r
        WHERE r.name = n.name AND r.status = w.status AND r.ended_at > p.since AND r.ended_at <= p.until AND r.parent_run IS NULL
    ) c
    WHERE %(limit)s::bigint IS NULL AND c.count > 0
    UNION ALL SELECT p.part, r.name, r.status, count(*), count(r.retried_as)
    FROM parts p JOIN flujo_runs r ON r.created_at > p.since AND r.ended_at > p.since AND r.ended_at <= p.until JOIN names n ON n.name = r.name
    WHERE %(limit)s::bigint IS NULL AND r.parent_run IS NOT NULL AND r.parent_address IS NULL GROUP BY p.part, r.name, r.status
    UNION ALL SELECT 'window', l.name, l.status, count(*), count(l.retried_as)
    FROM (
        SELECT e.* FROM parts p CROSS JOIN names n CROSS JOIN (VALUES ('succeeded'), ('failed'), ('cancelled'), ('expired')) w (status)
        CROSS JOIN LATERAL (
            SELECT r.name, r.status, r.ended_at, r.retried_as FROM flujo_runs r
            WHERE r.name = n.name AND r.status = w.status AND r.ended_at > p.since AND r.parent_run IS NULL
            ORDER BY r.ended_at DESC LIMIT %(limit)s::bigint
        ) e
        WHERE %(limit)s::bigint IS NOT NULL ORDER BY e.ended_at DESC LIMIT %(limit)s::bigint
    ) l
    GROUP BY l.name, l.status
),
alive AS (SELECT count(*) AS workers, min(started_at) AS since FROM flujo_workers WHERE ended_at IS NULL AND lease_until > now())
SELECT (SELECT coalesce(jsonb_object_agg(g.what, jsonb_build_object('count', g.count, 'oldest_s', g.oldest_s, 'named', g.named)), '{}')
        FROM (
            SELECT what, sum(count) AS count, max(age_s) AS oldest_s, (array_agg(name ORDER BY age_s DESC NULLS LAST, name))[:%(named)s::int] AS named
            FROM (SELECT what, name, count(*) AS count, max(age_s) FILTER (WHERE abs(age_s) < 'infinity') AS age_s FROM found GROUP BY what, name) n GROUP BY what
        ) g) AS found,
       (SELECT coalesce(jsonb_object_agg(g.queue, g.count), '{}')
        FROM (SELECT queue, count(*) AS count FROM waiting GROUP BY queue) g) AS queues,
       (SELECT extract(epoch FROM now() - nullif(swept_at, '-infinity'))::float8 FROM flujo_sweeps) AS sweep_age_s,
       -- Nothing sweeps before there is a worker: that time does not count.
       (SELECT extract(epoch FROM now() - greatest(w.swept_at, l.since))::float8 FROM flujo_sweeps w WHERE l.workers > 0) AS sweep_lag_s,
       l.workers AS live_workers,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(e.part, e.name, e.status, e.count, e.retried)), '[]') FROM ended e) AS ended,
       (SELECT coalesce(sum(CASE WHEN jsonb_typeof(e.data -> 'count') = 'number' THEN (e.data ->> 'count')::numeric ELSE 1 END), 0)::bigint
        FROM flujo_events e WHERE e.name = 'events.dropped' AND e.at >= now() - make_interval(secs => %(event_hours)s::float8 * 3600)) AS events_dropped
FROM alive l;
