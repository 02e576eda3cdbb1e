-- Attempts by their keys, which are derived from where they may be: so the run's other attempts are not read.
SELECT key, address, step, number, kind, status, created_at, started_at, ended_at, waits_for, concat_ws(': ', error ->> 'type_name', error ->> 'message') AS fault,
       metadata ->> 'taken_over_from' AS taken_from
FROM flujo_attempts WHERE key = ANY(%(keys)s::text[]) ORDER BY created_at, number, key;
