"""A pipeline in a file: YAML to pipeline and back (requirements §2.6)."""
