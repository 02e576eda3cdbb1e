SELECT address, parent, kind, step, status, opened_at, closed_at, concat_ws(': ', error ->> 'type_name', error ->> 'message') AS fault,
       metadata ->> 'child_run' AS child_run, metadata ->> 'taken_over_from' AS taken_from
FROM flujo_scopes WHERE run_id = %(run)s AND parent = ANY(%(at)s::text[]) AND kind <> 'sequence' ORDER BY place;
