"""Metrics for Prometheus: what there is, how it is read from Postgres, and how it is served."""
