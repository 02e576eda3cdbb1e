"""The process that a worker starts for an attempt in quarantine."""
