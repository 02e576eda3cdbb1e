-- Write the settings of a starting worker's file. Delete rows that are no longer set, unless workers may still have to see that they were cleared.
WITH given AS (SELECT * FROM unnest(%(guards)s::text[], %(models)s::text[], %(settings)s::text[]) AS g (guard, model, settings)),
missing AS (
    SELECT m.guard, m.model, m.edits IS NULL AND coalesce(m.cleared_at < now() - interval '1 hour', true) AS is_over
    FROM flujo_model_guards m WHERE NOT EXISTS (SELECT 1 FROM given g WHERE (g.guard, g.model) = (m.guard, m.model))
    ORDER BY m.guard, m.model FOR UPDATE SKIP LOCKED
),
gone AS (DELETE FROM flujo_model_guards m USING missing x WHERE (m.guard, m.model) = (x.guard, x.model) AND x.is_over),
emptied AS (
    UPDATE flujo_model_guards m SET from_file = NULL, changed_at = now() FROM missing x
    WHERE (m.guard, m.model) = (x.guard, x.model) AND NOT x.is_over AND m.from_file IS NOT NULL
)
INSERT INTO flujo_model_guards AS m (guard, model, from_file) SELECT guard, model, settings::jsonb FROM given g
WHERE NOT EXISTS (SELECT 1 FROM flujo_model_guards k WHERE (k.guard, k.model, k.from_file) = (g.guard, g.model, g.settings::jsonb))  -- it may be locked
ORDER BY guard, model ON CONFLICT (guard, model) DO UPDATE SET from_file = excluded.from_file, changed_at = now()
WHERE m.from_file IS DISTINCT FROM excluded.from_file;
