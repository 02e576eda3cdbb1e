"""The decisions: pure functions over values. No clock, no I/O, no user object."""
