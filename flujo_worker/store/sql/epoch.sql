-- The broker's epoch and when it began, by this database's clock.
INSERT INTO flujo_broker_epochs (epoch) VALUES (%(epoch)s)
ON CONFLICT (epoch) DO UPDATE SET epoch = excluded.epoch
RETURNING started_at;
