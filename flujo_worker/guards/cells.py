"""Where breakers are kept: each under a name, changed as a whole or not at all, by a clock that all who change it share.

In: a name and a pure act; out: what was there before the act and after it. What cannot be reached is None, never an error: a
breaker that cannot be asked counts as closed.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from pydantic import TypeAdapter

from flujo_client.transport.redis import RedisError, connect
from flujo_worker.domain.breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.config.manager import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEY: Final = "flujo:breaker:"
KEPT_S: Final = 3600.0
"""How long an unused breaker is remembered."""
AWAY_S: Final = 5.0
"""For so long Redis is left alone once it did not answer, so that no attempt waits for it."""
ANSWER_S: Final = 1.0
TRIES: Final = 100
_BREAKER: Final = TypeAdapter(Breaker)


class Changed(NamedTuple, Generic[T]):
    """What an act has done: the breaker before it and after it, and its answer."""

    before: Breaker
    after: Breaker
    answer: T


class Cells(Protocol):
    """Keeps breakers by name."""

    def change(self, name: str, act: Callable[[Breaker, float], tuple[Breaker, T]]) -> Changed[T] | None:
        """Apply an act to the breaker and the time in seconds; it may be called more than once. None: out of reach."""


class MemoryCells:
    """In this process: for the engine in one process.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._kept: dict[str, Breaker] = {}

    def change(self, name: str, act: Callable[[Breaker, float], tuple[Breaker, T]]) -> Changed[T] | None:
        with self._lock:
            before = self._kept.get(name, Breaker())
            after, answer = act(before, self._clock())
            self._kept[name] = after
            return Changed(before, after, answer)


class RedisCells:
    """In Redis, by its own clock: for all workers of a broker. Safe for several threads.

    Args:
        settings: where the broker is, and its key prefix.
    """

    def __init__(self, settings: Settings) -> None:
        self._prefix = settings.broker_key_prefix + KEY
        self._redis = connect(settings.broker(), patience_s=ANSWER_S)
        script = files("flujo_worker.guards").joinpath("cells.lua").read_text(encoding="utf-8")
        self._put = self._redis.register_script(script)
        self._lock = threading.Lock()
        self._away_until = 0.0

    def change(self, name: str, act: Callable[[Breaker, float], tuple[Breaker, T]]) -> Changed[T] | None:
        if time.monotonic() < self._away_until:
            return None
        try:
            return self._changed(self._prefix + name, act)
        except RedisError as error:
            self._away_until = time.monotonic() + AWAY_S
            logger.warning("circuit breakers cannot be reached and count as closed: %s", error)
            return None

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _changed(self, key: str, act: Callable[[Breaker, float], tuple[Breaker, T]]) -> Changed[T] | None:
        """Read, act and put, until no one was quicker. Threads of one process that have met queue up."""
        for attempt in range(TRIES):
            with self._lock if attempt else nullcontext():
                kept, now = self._read(key)
                before = _decoded(kept)
                after, answer = act(before, now)
                if after == before or self._put([key], [kept, _BREAKER.dump_json(after), _ttl_ms(after, now)]):
                    return Changed(before, after, answer)
        logger.warning("%s was changed concurrently %d times in a row; it counts as closed this time", key, TRIES)
        return None

    def _read(self, key: str) -> tuple[bytes, float]:
        pipe = self._redis.pipeline(transaction=False)
        pipe.get(key)
        pipe.time()
        kept, (seconds, microseconds) = pipe.execute()
        return kept or b"", seconds + microseconds / 1e6


def _decoded(kept: bytes) -> Breaker:
    """Read a breaker; what is none, be it another version's, is as good as forgotten."""
    try:
        return _BREAKER.validate_json(kept)
    except ValueError:
        return Breaker()


def _ttl_ms(breaker: Breaker, now: float) -> int:
    return int((KEPT_S + max(0.0, breaker.until - now)) * 1000)
