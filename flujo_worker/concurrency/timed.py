"""Messages that are due in a moment: they are held in this process and published when their time comes.

It rests on nothing: their rows are in Postgres with the same time, and the sweeper publishes what a process that died had held.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from flujo_client.contract.envelope import Envelope

MOST_HELD: Final = 10_000
"""Messages that a process holds; the sweeper publishes any others."""


class TimedMessages:
    """Publishes messages when they are due, from a separate thread.

    Args:
        publish: publishes those that are due; must not raise.
    """

    def __init__(self, publish: Callable[[Sequence[Envelope]], None]) -> None:
        self._publish = publish
        self._held: list[tuple[float, int, Envelope]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._publish_forever, name="flujo-timer", daemon=True)

    def start(self) -> None:
        """Publish from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what is not due yet is left to the sweeper."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def add(self, envelope: Envelope, delay_s: float) -> None:
        """Publish a message after a delay in seconds."""
        with self._changed:
            if len(self._held) < MOST_HELD:
                heapq.heappush(self._held, (time.monotonic() + delay_s, next(self._order), envelope))
                self._changed.notify()

    def _publish_forever(self) -> None:
        while due := self._next_due():
            self._publish(due)

    def _next_due(self) -> list[Envelope]:
        """Wait for the next messages; return none when this is to end."""
        with self._changed:
            while not self._is_stopping:
                now = time.monotonic()
                due = []
                while self._held and self._held[0][0] <= now:
                    due.append(heapq.heappop(self._held)[2])
                if due:
                    return due
                self._changed.wait(self._held[0][0] - now if self._held else None)
            return []
