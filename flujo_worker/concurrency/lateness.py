"""Measure for how long an event loop was late: it was blocked, its process got no CPU, or there was too much to do at once."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

EVERY_S: Final = 0.1
NOISE_S: Final = 0.01
"""A delay up to this is not counted: the timers of any process have it."""


class Lateness:
    """Counts the seconds that a loop was late, from now on. Made before the loop runs.

    `on_late` is called on the loop after each delay, with its seconds, before any task continues that has waited through it.
    """

    def __init__(self, loop: AbstractEventLoop, on_late: Callable[[float], object] = lambda _: None) -> None:
        self._loop, self._counted_s, self._due, self._on_late = loop, 0.0, loop.time(), on_late
        loop.call_soon(self._tick)

    @property
    def total_s(self) -> float:
        """Return the seconds so far, with those of a delay that lasts. Safe to read in any thread."""
        return self._counted_s + self._delay()

    def _tick(self) -> None:
        delay, self._due = self._delay(), self._loop.time() + EVERY_S
        self._counted_s += delay
        self._loop.call_at(self._due, self._tick)
        if delay:
            self._on_late(delay)

    def _delay(self) -> float:
        delay = self._loop.time() - self._due
        return delay if delay > NOISE_S else 0.0


def waited_for_cpu_s(thread: int | None) -> float:
    """Return for how many seconds a thread, by its native id, was ready to run and had no CPU; 0 where the system does not count it."""
    with suppress(OSError, ValueError, IndexError):  # Linux has it, unless its kernel was built without
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_bytes().split()[1]) / 1e9
    return 0.0
