-- Arrays are joined: as conditions they would be searched for each event, in each partition.
SELECT e.attempt, e.at, e.name, e.data FROM unnest(%(runs)s::text[]) AS r (run_id) JOIN flujo_events e ON e.run_id = r.run_id
WHERE e.name IN (SELECT unnest(%(names)s::text[])) AND e.attempt IN (SELECT unnest(%(attempts)s::text[]))
  AND e.at >= %(since)s::timestamptz - interval '1 day' AND e.at < %(until)s::timestamptz + interval '1 day'
ORDER BY e.attempt, e.id;
