-- Lines outside a merge: a run's events, or a worker's.
INSERT INTO flujo_events (run_id, attempt, name, level, data, at)
SELECT %(run)s, %(attempt)s, e.name, e.level, e.data::jsonb, coalesce(to_timestamp(e.at), now())
FROM unnest(%(names)s::text[], %(levels)s::text[], %(data)s::text[], %(at)s::float8[]) AS e (name, level, data, at);
