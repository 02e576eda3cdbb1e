"""The plan of a run: its steps and their kinds, its fingerprint, and how two plans differ."""
