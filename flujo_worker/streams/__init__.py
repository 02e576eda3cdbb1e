"""Write what steps do and say while they run to their runs' streams in Redis (ADR 57)."""
