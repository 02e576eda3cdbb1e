"""Reads runs' streams from Redis, and says what was lost (ADR 57)."""
