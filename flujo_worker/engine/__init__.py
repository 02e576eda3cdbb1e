"""The engine of a worker process: the parts that it is built from, its event loop, and how it publishes messages."""
