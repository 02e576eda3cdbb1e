"""Messages and the way to the broker, for clients and workers alike."""
