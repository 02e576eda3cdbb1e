    INSERT INTO flujo_events (run_id, attempt, fence, name, level, data, at)
    SELECT m.run, m.key, m.fence, e.name, e.level, e.data::jsonb, coalesce(to_timestamp(e.at), now())
    FROM (
        SELECT unnest(%(event_of)s::int[]) AS of, unnest(%(event_name)s::text[]) AS name, unnest(%(event_level)s::text[]) AS level,
               unnest(%(event_data)s::text[]) AS data, unnest(%(event_at)s::float8[]) AS at
    ) e JOIN merged m ON m.place = e.of
