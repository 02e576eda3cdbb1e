"""Processes of a worker's own: an attempt in quarantine."""
