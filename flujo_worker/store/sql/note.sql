-- Lines of a run's story that belong to no merge.
INSERT INTO flujo_events (run_id, attempt, name, level, data)
SELECT %(run)s, %(attempt)s, e.name, e.level, e.data::jsonb
FROM unnest(%(names)s::text[], %(levels)s::text[], %(data)s::text[]) AS e (name, level, data);
