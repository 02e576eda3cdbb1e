-- Parked runs by plan: whether they are pinned to it, its build, whether a worker of that build or with that plan is alive, and one of the reasons.
SELECT p.reference, left(p.fingerprint, 12) AS fingerprint, p.build, count(*) AS runs,
       coalesce(p.plan ->> 'on_change', %(on_change)s::text) = 'pin' AS is_pinned,
       EXISTS (
           SELECT 1 FROM flujo_workers w
           WHERE (w.code_build = p.build OR p.fingerprint = ANY(w.plans)) AND w.lease_until > now() AND w.ended_at IS NULL
       ) AS is_live,
       max(coalesce(r.reason, '')) AS reason
FROM flujo_runs r JOIN flujo_pipelines p ON p.fingerprint = r.fingerprint WHERE r.status = 'parked'
GROUP BY p.fingerprint ORDER BY p.reference, p.created_at;
