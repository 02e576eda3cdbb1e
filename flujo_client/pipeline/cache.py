"""Cached steps, whose successful results are stored and returned again for the same input, and the backends that store them.

Backends see keys and bytes: workers write, sign, read and verify results, and decide when they are used.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from flujo_client.pipeline.authoring import is_mock
from flujo_client.pipeline.container import Container
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.pipeline import Body
from flujo_client.pipeline.reference import found_by
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds
from flujo_client.plan.identity import identify

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
    found, wrong = found_by(backend, allowed, BACKEND)
    if wrong:
        yield wrong
    elif found is None:
        return
    elif isinstance(found, str):
        yield f"{BACKEND} '{backend}' is a text"
    elif is_mock(found):
        yield "its cache_backend is a mock, which no worker can rebuild"
    elif isinstance(found, type):
        yield f"its cache_backend is the class {found.__name__}; give an instance"
    elif lacking := [name for name in ("get", "set", "delete") if not callable(getattr(found, name, None))]:
        yield f"its cache_backend, a {type(found).__name__}, has no {', '.join(lacking)}"


SINGLE_FLIGHT_S = 60.0


@dataclass(frozen=True, eq=False, kw_only=True)
class CacheStep(Container):
    """Store a step's result, and use it again instead of running the step.

    Args:
        name: the name; the wrapped step's when empty.
        wrapped_step: any step or container that does not ask a person.
        cache_backend: where results are stored: a `CacheBackend`, or a reference to one; the workers' Redis when None.
        ttl_s: seconds a result is valid; 0 is forever.
        single_flight_s: seconds that equal calls wait for the one that runs the step, and as long again if that one fails or dies; with
            0 all run it. It should be longer than the step takes.
    """

    spec = kinds.CACHE

    name: str = field(default="", kw_only=False)
    wrapped_step: Step
    cache_backend: CacheBackend | str | None = None
    ttl_s: float = 3600.0
    single_flight_s: float = SINGLE_FLIGHT_S

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name and isinstance(self.wrapped_step, Step):
            object.__setattr__(self, "name", self.wrapped_step.name)

    def bodies(self) -> dict[str, Body]:
        return {"body": self.wrapped_step}

    def rules(self) -> dict[str, Any]:
        """Return the rules; the default wait is left out, so that older fingerprints stay valid."""
        waits = {} if self.single_flight_s == SINGLE_FLIGHT_S else {"single_flight_s": self.single_flight_s}
        return super().rules() | {"ttl_s": self.ttl_s} | waits

    def traits(self) -> dict[str, Any]:
        return {} if self.cache_backend is None else {"cache_backend": identify(self.cache_backend)}

    def place_inside(self, place: ContextInfo) -> ContextInfo:
        return place._replace(is_cached=True)

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        for option in ("ttl_s", "single_flight_s"):
            seconds: Any = getattr(self, option)
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < inf:
                yield f"{option} must be a number of seconds from 0, got {str(seconds)[:40]}"
        wrapped: Any = self.wrapped_step
        if not isinstance(wrapped, Step):
            yield f"wrapped_step must be a Step, got a {type(wrapped).__name__}; turn a pipeline into a step with as_step(name)"
