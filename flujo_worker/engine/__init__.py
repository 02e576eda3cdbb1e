"""The engine of a worker process: what it is built from, its loop's groups, and how messages leave it."""
