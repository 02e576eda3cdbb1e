"""What steps do and say while they run, written to their runs' streams in Redis (ADR 57)."""
