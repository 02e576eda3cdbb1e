"""Decide whether a process, and not the service that it called, caused a timeout, and how many attempts it may run at once.

Pure. In: for how many of some seconds an event loop was late. Out: a verdict, or a number of attempts.
"""

from __future__ import annotations

from math import ceil
from typing import Final

STARVED: Final = 1 / 3
"""The share of its time that an attempt may lose to a late event loop: it makes some twenty turns for one request over HTTP."""
SLOW_DOWN: Final = 0.2
"""The share of the last second above which fewer attempts are taken: before any of them is starved."""
CALM: Final = 0.1
"""The share below which more are taken again."""
LEAST: Final = 8
"""Attempts that a process runs at once however late its loop is: the load may be another process's."""
_SHRINK, _GROW = 0.7, 0.02


def is_starved(seconds: float, late_s: float) -> bool:
    """Return whether the event loop was late for too much of some seconds to blame anything else for what they were not enough for."""
    return seconds > 0 and late_s >= STARVED * seconds


def attempts_allowed(now: int, most: int, running: int, late_share: float) -> int:
    """Return how many attempts a process may run at once from now on: a little more while its loop is in time, much fewer if it is late.

    Args:
        now: how many it may run so far.
        most: its configured concurrency.
        running: how many it runs.
        late_share: the share of the last second for which its event loop was late.
    """
    if late_share > SLOW_DOWN:
        return min(now, max(LEAST, int(min(now, running) * _SHRINK)))
    return min(most, now + ceil(most * _GROW)) if late_share < CALM else now
