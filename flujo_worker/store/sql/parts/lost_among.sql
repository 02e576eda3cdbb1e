        SELECT k.key FROM json_each_text(%(held)s::json) AS k (key, fence) -- writing an array of 500 takes psycopg 1.3 ms
        WHERE NOT EXISTS (
            SELECT 1 FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
            WHERE a.key = k.key AND a.fence = k.fence::int AND a.status = 'running' AND a.worker = %(id)s AND r.cancel_requested_at IS NULL
              AND NOT EXISTS (
                  SELECT 1 FROM flujo_scopes f
                  WHERE f.run_id = a.run_id AND f.aborted
                    AND (starts_with(a.address, f.address || '/') OR starts_with(a.address, f.address || '#'))
              )
        )
