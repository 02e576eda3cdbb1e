"""A run's decisions made again from what was recorded: no model, no user code, no service."""
