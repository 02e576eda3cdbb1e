SELECT DISTINCT ON (split_part(data ->> 'worker', '~', 1)) split_part(data ->> 'worker', '~', 1) AS worker, data -> 'keys' AS lacks
FROM flujo_events WHERE run_id IS NULL AND name = 'worker.lacks_key'
ORDER BY split_part(data ->> 'worker', '~', 1), at DESC, id DESC
