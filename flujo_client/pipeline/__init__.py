"""Steps and pipelines, and the check before sending."""
