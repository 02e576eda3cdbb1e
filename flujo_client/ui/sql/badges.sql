-- The counts of the menu, each at most `most`: runs under way, runs of the last day that failed and were not retried, and open questions.
SELECT (SELECT count(*) FROM (
            SELECT FROM flujo_runs WHERE status IN ('queued', 'running', 'parked') AND parent_run IS NULL LIMIT %(most)s::int
        ) AS l) AS live,
       (SELECT count(*) FROM (
            SELECT FROM flujo_runs WHERE status IN ('failed', 'cancelled', 'expired') AND created_at > now() - interval '1 day'
              AND status <> 'cancelled' AND retried_as IS NULL AND parent_run IS NULL LIMIT %(most)s::int
        ) AS f) AS failed,
       (SELECT count(*) FROM (
            SELECT FROM flujo_attempts WHERE question IS NOT NULL AND question ->> 'event' IS NULL AND ended_at IS NULL AND status = 'paused' AND available_at > now() LIMIT %(most)s::int
        ) AS q) AS asked;
