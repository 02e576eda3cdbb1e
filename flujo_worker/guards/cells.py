"""Store the state of models and rate limits: each under a name, changed atomically, by a shared clock.

If the store cannot be reached, the result is None, never an error: a breaker then counts as closed, and a rate limit as met.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib.resources import files
from typing import Final, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from flujo_client.config.manager import Settings
from flujo_client.frozen import frozen
from flujo_client.transport.redis import Redis, RedisError, connect, sharing
from flujo_worker.domain.called_model import CalledModel
from flujo_worker.domain.rate import RateBucket

logger = logging.getLogger(__name__)

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")

KEPT_S: Final = 3600.0
"""Seconds that an unused cell is stored."""
AWAY_S: Final = 5.0
"""Seconds without calls after Redis did not answer, so that no attempt waits for it."""
ANSWER_S: Final = 1.0
TRIES: Final = 100


@frozen
class CellKind(Generic[S]):
    """A kind of stored state."""

    key: str
    """The prefix of its keys in Redis."""
    empty: S
    codec: TypeAdapter[S]
    lasts_until: Callable[[S], float]
    """The end of its use, in seconds of the clock."""
    away: str
    """The log message when the cells cannot be reached."""


MODELS: Final = CellKind(
    "flujo:model:",
    CalledModel(),
    TypeAdapter(CalledModel),
    lambda model: max(model.breaker.until, model.slowdown.since),
    "circuit breakers cannot be reached and count as closed, and refused calls slow no model down",
)
RATES: Final = CellKind(
    "flujo:rate:",
    RateBucket(),
    TypeAdapter(RateBucket),
    lambda bucket: max(bucket.promised_until, bucket.tokens_at, bucket.requests_at),
    "rate limits cannot be reached and are not applied",
)


class Cells(Protocol[S]):
    """Stores values of one kind by name."""

    def change(self, name: str, act: Callable[[S, float], tuple[S, T]]) -> T | None:
        """Apply an act to the cell and the time in seconds, and return its answer; it may be called more than once. None: out of reach."""


def answered_in_order(
    cells: Cells[S],
    requests: Sequence[R],
    name_of: Callable[[R], str],
    answer: Callable[[S, float, R], tuple[S, T]],
    unreachable: Callable[[R], T],
) -> list[T]:
    """Answer requests as if each came after the one before it. All of one cell change it at once."""

    def answers(name: str) -> Iterator[T]:
        own = [each for each in requests if name_of(each) == name]

        def act(state: S, now: float) -> tuple[S, list[T]]:
            given = []
            for each in own:
                state, one = answer(state, now, each)
                given.append(one)
            return state, given

        given = cells.change(name, act)
        return iter(list(map(unreachable, own)) if given is None else given)

    by_name = {name: answers(name) for name in set(map(name_of, requests))}
    return [next(by_name[name_of(each)]) for each in requests]


class MemoryCells(Generic[S]):
    """Cells in this process's memory: for an engine in one process, and for workers without Redis."""

    def __init__(self, kind: CellKind[S], clock: Callable[[], float]) -> None:
        self._kind, self._clock, self._lock = kind, clock, threading.Lock()
        self._kept: dict[str, S] = {}

    def change(self, name: str, act: Callable[[S, float], tuple[S, T]]) -> T | None:
        with self._lock:
            self._kept[name], answer = act(self._kept.get(name, self._kind.empty), self._clock())
            return answer


class RedisCells(Generic[S]):
    """Cells in Redis, by its clock: shared by all workers of a broker. Safe for several threads. Uses the connections of `redis`; None makes others."""

    def __init__(self, kind: CellKind[S], settings: Settings, redis: Redis | None = None) -> None:
        self._kind, self._prefix = kind, settings.broker_key_prefix + kind.key
        redis = redis or connect(settings.redis(), settings.sentinel_options(), patience_s=ANSWER_S)
        self._redis = sharing(redis, ANSWER_S)
        script = files("flujo_worker.guards").joinpath("cells.lua").read_text(encoding="utf-8")
        self._put = self._redis.register_script(script)
        self._lock = threading.Lock()
        self._away_until = 0.0

    def change(self, name: str, act: Callable[[S, float], tuple[S, T]]) -> T | None:
        if time.monotonic() < self._away_until:
            return None
        try:
            return self._try_to_change(self._prefix + name, act)
        except RedisError as error:
            self._away_until = time.monotonic() + AWAY_S
            logger.warning("%s: %s", self._kind.away, error)
            return None

    def close(self) -> None:
        self._redis.connection_pool.disconnect()

    def _try_to_change(self, key: str, act: Callable[[S, float], tuple[S, T]]) -> T | None:
        """Read, act and write, and retry on a conflict. Threads of one process that conflict queue up."""
        for attempt in range(TRIES):
            with self._lock if attempt else nullcontext():
                kept, now = self._read(key)
                before = self._decode(kept)
                after, answer = act(before, now)
                if after == before or self._put(
                    [key], [kept, self._kind.codec.dump_json(after), self._ttl_ms(after, now)]
                ):
                    return answer
        logger.warning("%s was changed concurrently %d times in a row; it is not applied this time", key, TRIES)
        return None

    def _read(self, key: str) -> tuple[bytes, float]:
        pipe = self._redis.pipeline(transaction=False)
        pipe.get(key)
        pipe.time()
        kept, (seconds, microseconds) = pipe.execute()
        return kept or b"", seconds + microseconds / 1e6

    def _decode(self, kept: bytes) -> S:
        """Decode a cell; anything unreadable, such as another version's, counts as empty."""
        try:
            return self._kind.codec.validate_json(kept)
        except ValueError:
            return self._kind.empty

    def _ttl_ms(self, cell: S, now: float) -> int:
        return int((KEPT_S + max(0.0, self._kind.lasts_until(cell) - now)) * 1000)
