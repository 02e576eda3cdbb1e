SELECT d.id, d.name, d.tenant, d.status, d.created_at, d.started_at, d.ended_at, d.parent_run, d.tokens, d.cost_usd
FROM flujo_deleted_runs d
WHERE (%(status)s::text[] IS NULL OR d.status = ANY(%(status)s::text[])) AND (%(pipeline)s::text IS NULL OR d.name = %(pipeline)s::text)
  AND (%(tenant)s::text IS NULL OR d.tenant = %(tenant)s::text) AND (%(parent)s::text IS NULL OR d.parent_run = %(parent)s::text)
ORDER BY d.ended_at DESC, d.id DESC LIMIT %(limit)s::int OFFSET %(offset)s::int;
