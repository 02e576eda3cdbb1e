"""Judge values by JSON schemas in bounded time: what a schema accepts, which branch fits, and what is wrong."""
