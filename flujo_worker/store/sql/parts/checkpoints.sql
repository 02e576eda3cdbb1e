    INSERT INTO flujo_contexts (run_id, place, context)
    SELECT m.run, b.at, b.context
    FROM (
        SELECT unnest(%(begun_of)s::int[]) AS of, unnest(%(begun_at)s::int[]) AS at, unnest(%(begun_context)s::bytea[]) AS context
    ) b JOIN merged m ON m.place = b.of
    ON CONFLICT DO NOTHING
