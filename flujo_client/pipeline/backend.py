"""Backends that store cached results: the protocol, and the one in memory.

A backend sees keys and bytes. It need not understand them: workers write, sign, read and verify them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

from flujo_client.errors import FlujoError
from flujo_client.pipeline.reference import load

MOST_ENTRIES = 1024
BACKEND = "cache backend"
"""Its name in error messages."""


class CacheBackend(Protocol):
    """Store bytes by key. Its methods may be async, and are called from many threads; one that raises makes a miss, never a failure.

    A backend may also have `add(key, value, ttl_s)`, which stores the value unless the key has one, in one atomic operation, and returns
    whether it did. Without it, equal calls at the same time do not wait for each other.
    """

    def get(self, key: str) -> bytes | Awaitable[bytes | None] | None:
        """Return what is stored under the key; None when nothing is."""

    def set(self, key: str, value: bytes, ttl_s: float) -> Awaitable[None] | None:
        """Store the value for so many seconds; forever when that is 0."""

    def delete(self, key: str) -> Awaitable[None] | None:
        """Delete the key, if it is there."""


class InMemoryCache:
    """A cache backend in this process, which evicts expired and least recently used entries.

    Args:
        max_entries: the number of entries.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, max_entries: int = MOST_ENTRIES, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = max_entries, clock
        self._entries: OrderedDict[str, tuple[bytes, float | None]] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: str) -> bytes | None:
        """Return what is stored under the key, and count it as used."""
        with self._lock:
            value, until = self._entries.get(key, (None, None))
            if until is not None and until <= self._clock():
                del self._entries[key]
                return None
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def set(self, key: str, value: bytes, ttl_s: float) -> None:
        """Store the value, and remove the least recently used entry if there are too many."""
        with self._lock:
            self._entries[key] = value, self._clock() + ttl_s if ttl_s else None
            self._entries.move_to_end(key)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def add(self, key: str, value: bytes, ttl_s: float) -> bool:
        """Store the value unless the key has one; return whether it did."""
        with self._lock:
            if self.get(key) is not None:
                return False
            self.set(key, value, ttl_s)
            return True

    def delete(self, key: str) -> None:
        """Delete the key."""
        with self._lock:
            self._entries.pop(key, None)


def backend_findings(backend: Any, allowed: Sequence[str]) -> Iterator[str]:
    """Find what is wrong with a step's `cache_backend`; there is none when it is None."""
    if backend is None:
        return
    if isinstance(backend, str):
        try:
            live = load(backend, allowed=allowed, what=BACKEND)
        except FlujoError as error:
            yield error.message
        else:
            yield from (
                [f"{BACKEND} '{backend}' is a text"] if isinstance(live, str) else backend_findings(live, allowed)
            )
    elif type(backend).__module__.startswith("unittest.mock"):
        yield "its cache_backend is a mock, which no worker can rebuild"
    elif isinstance(backend, type):
        yield f"its cache_backend is the class {backend.__name__}; give an instance"
    elif lacking := [name for name in ("get", "set", "delete") if not callable(getattr(backend, name, None))]:
        yield f"its cache_backend, a {type(backend).__name__}, has no {', '.join(lacking)}"
