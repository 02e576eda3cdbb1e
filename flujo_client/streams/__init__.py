"""Read runs' streams from Redis, and report what was lost (ADR 57)."""
