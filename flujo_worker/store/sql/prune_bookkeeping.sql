-- Delete old bookkeeping: workers whose lease is long over, broker epochs before the present one, tenants' budgets of days long
-- gone, permits of attempts that have ended, and limits at which no attempt has asked. At `tenant:` an index scan begins.
WITH setting AS (SELECT now() - make_interval(secs => %(older_s)s::float8) AS since),
workers AS (DELETE FROM flujo_workers w USING setting WHERE w.lease_until < setting.since RETURNING 1),
epochs AS (
    DELETE FROM flujo_broker_epochs e USING setting
    WHERE e.started_at < setting.since AND e.started_at < (SELECT max(started_at) FROM flujo_broker_epochs) RETURNING 1
),
budgets AS (
    DELETE FROM flujo_budgets b USING setting
    WHERE b.scope >= 'tenant:' AND b.scope ~ '^tenant:.*:\d{4}-\d\d-\d\d$'
      AND right(b.scope, 10) < to_char(setting.since AT TIME ZONE 'UTC', 'YYYY-MM-DD') RETURNING 1
),
permits AS (DELETE FROM flujo_permits p WHERE NOT EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.key = p.key AND a.ended_at IS NULL) RETURNING 1),
limits AS (
    DELETE FROM flujo_limits l USING setting
    WHERE l.asked_at < setting.since AND NOT EXISTS (SELECT 1 FROM flujo_permits p WHERE p.name = l.name) RETURNING 1
)
SELECT (SELECT count(*) FROM workers) + (SELECT count(*) FROM epochs) + (SELECT count(*) FROM budgets) AS gone;
