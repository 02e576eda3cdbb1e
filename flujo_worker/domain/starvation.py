"""Decide whether a process, and not the service that it called, caused a timeout, and how many attempts it may run at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

STARVED: Final = 1 / 3
"""The share of its time that an attempt may lose to a late event loop: it makes some twenty turns for one request over HTTP."""
SLOW_DOWN: Final = 0.2
"""The share of the time between two looks above which the loop is late, and fewer attempts are taken: before any of them is starved."""
CROWDED, OWN_WORK = 2, 6
"""The number of looks, every half second, that must find the loop late: because of other processes, and because of its own work. Hundreds of
attempts that begin at once take fewer, and then wait for their models."""
CALM: Final = 0.1
"""The share of the time since the last look below which more are taken again."""
LEAST: Final = 8
"""Attempts that a process runs at once however late its loop is: the load may be another process's."""
_SHRINK, _GROW = 0.84, 1.5


def is_starved(seconds: float, late_s: float) -> bool:
    """Return whether the event loop was late for too much of some seconds to blame anything else for what they were not enough for."""
    return seconds > 0 and late_s >= STARVED * seconds


def attempts_allowed(now: int, most: int, running: int, late: Sequence[float], *, is_crowded: bool) -> int:
    """Return how many attempts a process may run at once from now on: more while its loop is in time, fewer if it stays late.

    Attempts make a loop late when they begin or end, not while they wait for their models. After half a second in time it may therefore run
    half as many again as it runs, however low the limit was before.

    Args:
        now: how many it may run so far.
        most: its configured concurrency.
        running: how many it runs.
        late: for the last looks, the share of the time before each in which its event loop was late, the latest last.
        is_crowded: whether other processes had the CPU when it was late last. Their load may stay, so fewer are taken at once.
    """
    looks = CROWDED if is_crowded else OWN_WORK
    if len(late) >= looks and min(late[-looks:]) > SLOW_DOWN:
        return min(now, max(LEAST, int(min(now, running) * _SHRINK)))
    if late[-1] < CALM:
        return min(most, ceil(max(now, running) * _GROW))
    return now
