"""Time calls side by side: by turns, so that a machine whose speed drifts hurts all of them alike.

It must not judge. In: calls by name; out: microseconds by name, less what reading the clock costs.
"""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

Call = TypeVar("Call")
Row = dict[str, Any]
"""One line of a table, by column."""


def interleaved(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Call all by turns."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    clock = clock_cost()
    for name, call in turns(calls, rounds):
        start = time.perf_counter_ns()
        call()
        took[name].append((time.perf_counter_ns() - start - clock) / 1000)
    return warm(took)


async def awaited(calls: Mapping[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, list[float]]:
    """Await all by turns."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    clock = clock_cost()
    for name, call in turns(calls, rounds):
        start = time.perf_counter_ns()
        await call()
        took[name].append((time.perf_counter_ns() - start - clock) / 1000)
    return warm(took)


def turns(calls: Mapping[str, Call], rounds: int) -> Iterator[tuple[str, Call]]:
    """Every other round goes backwards, so that none always finds the caches the one before it left."""
    order = list(calls.items())
    with small_heap():
        for _ in range(rounds + 1):
            yield from order
            order.reverse()


@contextmanager
def small_heap() -> Iterator[None]:
    """Let the collector look at what the calls make alone: walking all that was imported would hit one of them by chance."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def warm(took: dict[str, list[float]]) -> dict[str, list[float]]:
    """The first round compiles, imports and fills caches."""
    return {name: times[1:] for name, times in took.items()}


def clock_cost() -> float:
    """Nanoseconds between two readings of the clock."""
    return statistics.median(-time.perf_counter_ns() + time.perf_counter_ns() for _ in range(10_000))


def middle(times: list[float]) -> float:
    return statistics.median(times)


def late(times: list[float]) -> float:
    """The 99th percentile."""
    return sorted(times)[int(len(times) * 0.99)]


def brief(number: float) -> float:
    """Three figures are as much as a run is good for."""
    return float(f"{number:.3g}")
