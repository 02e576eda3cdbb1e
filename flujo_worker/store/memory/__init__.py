"""The store in memory: the same promises, for tests and `LocalEngine`."""
