-- Store a plan that workers have, and when the latest of them was started. Without a worker it is taken up now.
INSERT INTO flujo_pipelines AS p (fingerprint, reference, name, version, plan, hooked, adopted_at)
SELECT %(fingerprint)s::text, %(reference)s::text, %(name)s::text, %(version)s::text, %(plan)s::jsonb, %(hooked)s::bool,
       coalesce((SELECT w.started_at FROM flujo_workers w WHERE w.id = %(worker)s::text), now())
ON CONFLICT (fingerprint) DO UPDATE SET adopted_at = greatest(p.adopted_at, excluded.adopted_at);
