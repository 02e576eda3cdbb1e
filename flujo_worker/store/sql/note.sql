INSERT INTO flujo_events (run_id, attempt, name, level, data, at)
SELECT %(run)s, %(attempt)s, e.name, e.level, e.data::jsonb, coalesce(to_timestamp(e.at), now())
FROM unnest(%(event_name)s::text[], %(event_level)s::text[], %(event_data)s::text[], %(event_at)s::float8[]) AS e (name, level, data, at);
