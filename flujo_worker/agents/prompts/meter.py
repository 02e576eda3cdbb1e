"""The bounds of one rendering: steps, characters, seconds. Code that works for a template first spends from its meter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from flujo_worker.concurrency.call_context import setting

MOST_STEPS = 200_000
"""Passes of loops and calls of macros, filters and methods, together."""


class Exhausted(Exception):
    """A rendering that would exceed a limit; the message names it."""


@dataclass(slots=True)
class Meter:
    """The remaining bounds of one rendering."""

    chars: int
    """Characters that may still be made, printed or not."""
    until: float
    """The monotonic time at which it ends."""
    steps: int = field(default=MOST_STEPS)
    missing: dict[str, None] = field(default_factory=dict)
    """The missing names that it used, in order."""

    def spend(self, chars: int = 0) -> None:
        """Make one step that makes so many characters, or items. Raises Exhausted: it would pass a bound."""
        self.steps -= 1
        self.chars -= chars
        if self.steps < 0:
            raise Exhausted(f"more than {MOST_STEPS:,} steps")
        if self.chars < 0:
            raise Exhausted("more characters than are allowed for a prompt")
        if time.monotonic() > self.until:
            raise Exhausted("more seconds than are allowed for a prompt")


_UNBOUND = Meter(0, 0.0, 0)
_meter: ContextVar[Meter] = ContextVar("meter", default=_UNBOUND)


def spend(chars: int = 0) -> None:
    """Spend from the meter of the rendering that this is part of; see `Meter.spend`."""
    _meter.get().spend(chars)


def note_missing(name: str) -> None:
    _meter.get().missing[name] = None


@contextmanager
def metered(chars: int, seconds: float) -> Iterator[Meter]:
    """Return everything inside one meter."""
    meter = Meter(chars, time.monotonic() + seconds)
    with setting(_meter, meter):
        yield meter
