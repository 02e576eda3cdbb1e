SELECT 'run ' || id || ' (' || (metadata ->> 'shape') || ') ' || status || coalesce(' with ' || (error ->> 'code'), '')
       || ', expected ' || coalesce('failed with ' || (metadata ->> 'error'), 'succeeded') AS what
FROM flujo_runs
WHERE metadata ->> 'chaos' = %(monkey)s AND ended_at IS NOT NULL AND NOT (status = 'cancelled' AND cancel_requested_at IS NOT NULL)
  AND (status, error ->> 'code') IS DISTINCT FROM
      (CASE WHEN metadata ->> 'error' IS NULL THEN 'succeeded' ELSE 'failed' END, metadata ->> 'error');
