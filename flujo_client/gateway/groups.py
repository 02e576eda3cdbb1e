"""Form groups of the calls that are under way at the same time, so that they share a statement. There is no timer: a call alone begins at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_AT_ONCE: Final = 64
"""The largest group: all calls of a group wait for the slowest."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupedCall:
    """A call that waits for its group."""

    item: Any
    answer: Any
    """A future of threads or of asyncio, for its result."""
    lead: Callable[[GroupedCall], None]
    """Lets the caller perform the next group, of which the call is the first."""


class CallGroups:
    """The calls of each kind that wait while a group of their kind is performed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[GroupedCall]] = {}

    def enter(self, kind: Hashable, call: GroupedCall) -> bool:
        """Return True if no group of this kind is under way, so that the call leads one now; otherwise let it wait."""
        with self._lock:
            if kind in self._waiting:
                self._waiting[kind].append(call)
                return False
            self._waiting[kind] = deque()
            return True

    def join(self, kind: Hashable, leader: GroupedCall) -> list[GroupedCall]:
        """Return the group of the call that leads: itself, and those that wait now, in the order of their calls."""
        with self._lock:
            waiting = self._waiting[kind]
            return [leader, *(waiting.popleft() for _ in range(min(len(waiting), MOST_AT_ONCE - 1)))]

    def hand_over(self, kind: Hashable) -> None:
        """Let the call that has waited longest lead, if any waits."""
        with self._lock:
            if not self._waiting[kind]:
                del self._waiting[kind]
                return
            call = self._waiting[kind].popleft()
        call.lead(call)

    def withdraw(self, kind: Hashable, call: GroupedCall) -> bool:
        """Let a call wait no longer; return False if it is in a group already."""
        with self._lock:
            is_waiting = call in self._waiting.get(kind, ())
            if is_waiting:
                self._waiting[kind].remove(call)
            return is_waiting


def answer_all(group: Sequence[GroupedCall], results: Sequence[Any]) -> None:
    """Give each call its result, or None if its group was broken off; a caller may wait no longer."""
    for call, result in zip(group, results or [None] * len(group), strict=True):
        if not call.answer.done():
            call.answer.set_result(result)
