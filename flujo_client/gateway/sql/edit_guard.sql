-- Change what operators have set for models, and let attempts ask again that wait for such a model, once all workers know the change.
WITH edited AS (
    INSERT INTO flujo_model_guards AS m (guard, model, edits, cleared_at)
    VALUES (%(guard)s::text, %(model)s::text, %(edits)s::text::jsonb, CASE WHEN %(clears)s THEN clock_timestamp() END)
    ON CONFLICT (guard, model) DO UPDATE
    SET edits = CASE
            WHEN %(resets)s OR m.edits IS NULL THEN excluded.edits
            WHEN excluded.edits IS NULL THEN m.edits
            ELSE m.edits || excluded.edits END,
        cleared_at = coalesce(excluded.cleared_at, m.cleared_at), changed_at = now()
),
noted AS (
    INSERT INTO flujo_events (name, data)
    SELECT 'guard.edited', jsonb_build_object(
        'guard', %(guard)s::text, 'model', %(model)s::text, 'edits', %(edits)s::text::jsonb, 'resets', %(resets)s::bool, 'clears', %(clears)s::bool,
        'actor', %(actor)s::text)
),
woken AS (
    UPDATE flujo_attempts SET available_at = now() + make_interval(secs => %(wake_s)s::float8)
    WHERE ended_at IS NULL AND status = 'ready' AND available_at > now() + make_interval(secs => %(wake_s)s::float8)
      AND waits_for LIKE %(waits_for)s::text
    RETURNING 1
)
SELECT count(*) AS woken FROM woken;
