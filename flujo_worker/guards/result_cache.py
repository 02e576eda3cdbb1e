"""The result cache that all workers share, in the Redis of the result backend, which is the broker's where none is named.

Whatever Redis refuses is raised: the caller makes a miss of it.
"""

from __future__ import annotations

from typing import cast

from flujo_client.config.manager import Settings
from flujo_client.transport.redis import Redis, connect, sharing

PREFIX = "flujo:cache:"
PATIENCE_S = 2.0
"""Seconds that Redis may take: a worker that waits for the cache could be running the step."""


class RedisCache:
    """A `CacheBackend` in Redis. Safe for several threads. Uses the connections of `results`; None makes others."""

    def __init__(self, settings: Settings, results: Redis | None = None) -> None:
        self._prefix = settings.broker_key_prefix + PREFIX
        results = results or connect(settings.results(), settings.sentinel_options(), patience_s=PATIENCE_S, most=1)
        self._redis = sharing(results, PATIENCE_S)

    def get(self, key: str) -> bytes | None:
        return cast("bytes | None", self._redis.get(self._prefix + key))

    def set(self, key: str, value: bytes, ttl_s: float) -> None:
        self._redis.set(self._prefix + key, value, px=max(1, round(ttl_s * 1000)) if ttl_s else None)

    def add(self, key: str, value: bytes, ttl_s: float) -> bool:
        return bool(self._redis.set(self._prefix + key, value, px=max(1, round(ttl_s * 1000)), nx=True))

    def delete(self, key: str) -> None:
        self._redis.delete(self._prefix + key)

    def close(self) -> None:
        self._redis.connection_pool.disconnect()
