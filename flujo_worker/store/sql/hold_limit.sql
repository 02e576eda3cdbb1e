-- Hold a limit until the end of the transaction, so that the next statement sees all permits that were given before.
INSERT INTO flujo_limits (name, at_once) VALUES (%(name)s::text, %(at_once)s::int)
ON CONFLICT (name) DO UPDATE SET at_once = excluded.at_once, asked_at = now();
