-- Add what ended since the last time to the counters that outlive its rows, five minutes of work at most; `behind`: there is more to add now.
-- A merge that is under way has the time of its beginning, so this stops before the oldest transaction. A transaction of another role does not
-- show its age, and one older than five minutes is no merge: hence the lag, and the limit.
WITH span AS (
    SELECT s.tallied_to AS since, least(
        now() - make_interval(secs => %(lag_s)s::float8),
        (SELECT min(x.xact_start) FROM pg_stat_activity x WHERE x.datname = current_database() AND x.xact_start > now() - interval '5 min'),
        (SELECT min(a.ended_at) FROM flujo_attempts a WHERE a.ended_at >= s.tallied_to) + interval '5 min'
    ) AS until
    FROM flujo_sweeps s WHERE s.tallied_to < now() - make_interval(secs => %(lag_s)s::float8 * 1.5) FOR UPDATE
),
moved AS (UPDATE flujo_sweeps s SET tallied_to = span.until FROM span WHERE span.until > span.since),
added AS (
    INSERT INTO flujo_tallies AS t (name, labels, value)
    SELECT c.name, c.labels, c.value FROM span CROSS JOIN LATERAL flujo_counted(span.since, span.until) c WHERE span.until > span.since
    ON CONFLICT (name, labels) DO UPDATE SET value = t.value + excluded.value
)
SELECT span.until < now() - interval '5 min' AND span.until > span.since AS behind FROM span;
