"""How much one rendering may do: steps, characters, seconds. Whoever works for a template spends from its meter first.

Must not know of templates. In: what is about to be done. Out: nothing, or `Exhausted`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_STEPS = 200_000
"""Passes of loops and calls of macros, filters and methods, together."""


class Exhausted(Exception):
    """A rendering that would do more than it may; the message says of what."""


@dataclass(slots=True)
class Meter:
    """What is left of one rendering.

    Attributes:
        chars: characters that may still be made, printed or not.
        until: the monotonic time at which it is over.
        steps: steps that may still be made.
    """

    chars: int
    until: float
    steps: int = field(default=MOST_STEPS)

    def spend(self, chars: int = 0) -> None:
        """Make one step that makes so many characters, or items.

        Raises:
            Exhausted: it would pass a bound.
        """
        self.steps -= 1
        self.chars -= chars
        if self.steps < 0:
            raise Exhausted(f"more than {MOST_STEPS:,} steps")
        if self.chars < 0:
            raise Exhausted("more characters than a prompt may have")
        if time.monotonic() > self.until:
            raise Exhausted("more seconds than a prompt may take")


_UNBOUND = Meter(0, 0.0, 0)
_meter: ContextVar[Meter] = ContextVar("meter", default=_UNBOUND)


def spend(chars: int = 0) -> None:
    """Spend from the meter of the rendering that this is part of; see `Meter.spend`."""
    _meter.get().spend(chars)


@contextmanager
def metered(chars: int, seconds: float) -> Iterator[None]:
    """Give everything inside one meter."""
    token = _meter.set(Meter(chars, time.monotonic() + seconds))
    try:
        yield
    finally:
        _meter.reset(token)
