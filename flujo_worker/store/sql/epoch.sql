-- The broker's epoch and when it began, by this database's clock. Before the first one nothing is known to be lost, so that one
-- has always been: else a fresh system would publish its whole backlog twice. One that is there is only read: its row may be locked.
WITH known AS (SELECT started_at FROM flujo_broker_epochs WHERE epoch = %(epoch)s),
begun AS (
    INSERT INTO flujo_broker_epochs (epoch, started_at)
    SELECT %(epoch)s, CASE WHEN EXISTS (SELECT 1 FROM flujo_broker_epochs) THEN now() ELSE to_timestamp(0) END
    WHERE NOT EXISTS (SELECT 1 FROM known)
    ON CONFLICT (epoch) DO UPDATE SET epoch = excluded.epoch RETURNING started_at
)
SELECT started_at FROM known UNION ALL SELECT started_at FROM begun;
