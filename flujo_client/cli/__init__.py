"""The `flujo` command: one file per command, each of which parses, calls, and hands a value to `output`."""
