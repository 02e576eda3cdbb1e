"""Logging: structlog lines for people, and the same lines as events of the run."""
