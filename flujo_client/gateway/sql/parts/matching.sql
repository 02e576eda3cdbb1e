      -- The conditions of a RunFilter on a run `r`; each is off when null. No row has the status paused: without it an index of live runs fits.
      (%(status)s::text[] IS NULL OR r.status = ANY(array_remove(%(status)s::text[], 'paused')) OR ('paused' = ANY(%(status)s::text[]) AND r.status IN ('queued', 'running')))
      AND (%(status)s::text[] IS NULL OR CASE WHEN r.status IN ('queued', 'running') AND flujo_is_paused(r.id) THEN 'paused' ELSE r.status END = ANY(%(status)s::text[]))
      AND (%(pipeline)s::text IS NULL OR r.name = %(pipeline)s::text OR r.reference = %(pipeline)s::text)
      AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s::text) AND (%(metadata)s::jsonb IS NULL OR r.metadata @> %(metadata)s::jsonb)
      AND (%(since)s::timestamptz IS NULL OR r.created_at >= %(since)s::timestamptz)
      AND (%(within_s)s::float8 IS NULL OR r.created_at >= now() - make_interval(secs => %(within_s)s::float8))
      AND (%(ended_within_s)s::float8 IS NULL OR r.ended_at > now() - make_interval(secs => %(ended_within_s)s::float8))
      AND (NOT %(not_retried)s::bool OR r.retried_as IS NULL OR r.status NOT IN ('failed', 'cancelled', 'expired'))
      AND (%(background)s::bool IS NULL OR (r.parent_run IS NOT NULL AND r.parent_address IS NULL) = %(background)s::bool)
      AND (%(parent)s::text IS NULL OR r.parent_run = %(parent)s::text OR (%(parent)s::text = '' AND r.parent_run IS NULL))
      AND (%(prefix)s::text IS NULL OR starts_with(r.id, %(prefix)s::text))
      AND (%(end)s::text IS NULL OR right(r.id, length(%(end)s::text)) = %(end)s::text)
      AND (%(part)s::text IS NULL OR strpos(r.id, %(part)s::text) > 0)
      AND (%(text)s::text IS NULL OR strpos(r.id, %(text)s::text) > 0 OR strpos(lower(r.name), lower(%(text)s::text)) > 0
           OR strpos(lower(r.reason), lower(%(text)s::text)) > 0
           OR (r.error IS NOT NULL
               AND strpos(lower(concat_ws(' ', r.error ->> 'type_name', r.error ->> 'code', r.error ->> 'message')), lower(%(text)s::text)) > 0))
      -- A live run has no error of its own: the errors of its attempts count.
      AND (%(error)s::text IS NULL OR CASE
          WHEN r.ended_at IS NOT NULL THEN
              strpos(lower(concat_ws(' ', r.error ->> 'type_name', r.error ->> 'code', r.error ->> 'message')), lower(%(error)s::text)) > 0
          ELSE (
              SELECT true FROM flujo_attempts t
              WHERE t.run_id = r.id AND t.status = 'failed'
                AND strpos(lower(concat_ws(' ', t.error ->> 'type_name', t.error ->> 'code', t.error ->> 'message')), lower(%(error)s::text)) > 0
              LIMIT 1 -- not EXISTS, for which Postgres may read the failed attempts of all runs first
          ) END)
      -- Where a run is, or where it stopped: the last attempt at the step did not succeed.
      AND (%(step)s::text IS NULL OR (
          SELECT true FROM flujo_attempts t
          WHERE t.run_id = r.id AND t.step = %(step)s::text AND t.status <> 'succeeded'
            AND NOT EXISTS (
                SELECT 1 FROM flujo_attempts l WHERE l.run_id = t.run_id AND l.address = t.address AND l.step = t.step AND l.number > t.number
            )
          LIMIT 1
      ))
