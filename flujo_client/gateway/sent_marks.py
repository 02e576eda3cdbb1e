"""Marks what was published, in batches and off the caller's way.

A mark that is lost costs one doubled message, which its claim refuses: the sweeper publishes a row again that is not marked when its grace
is over. So nobody waits for a mark, and no process stays alive for one.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TypeAlias
from weakref import WeakSet

MARK_AFTER_S = 0.1
PATIENCE_S = 1.0
"""How long the end of a client, or of the process, waits for marks that are under way."""

Ages: TypeAlias = Mapping[str, float]
"""Attempt keys → seconds since just before their messages were sent."""


class Unmarked:
    """What was published and is not marked yet. Safe for several threads."""

    def __init__(self) -> None:
        self._sent: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, keys: Collection[str], sent_at: float) -> bool:
        """Remember keys whose messages were sent after `sent_at` on the monotonic clock; tell whether there were none before."""
        with self._lock:
            was_empty = not self._sent
            self._sent.update(dict.fromkeys(keys, sent_at))
            return was_empty

    def take(self) -> Ages:
        """Give all of it, once."""
        with self._lock:
            sent, self._sent = self._sent, {}
        now = time.monotonic()
        return {key: now - at for key, at in sent.items()}


class MarkThread:
    """Marks from a daemon thread, which begins with the first key and ends with the batch.

    Args:
        mark: writes the marks; what it raises is its own affair.
    """

    def __init__(self, mark: Callable[[Ages], None]) -> None:
        self._mark, self._unmarked = mark, Unmarked()
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        _open.add(self)

    def add(self, keys: Collection[str], sent_at: float) -> None:
        """Mark these soon."""
        if self._unmarked.add(keys, sent_at):
            thread = threading.Thread(target=self._mark_soon, name="flujo-sent-marks", daemon=True)
            with suppress(RuntimeError):  # the interpreter is ending and starts no thread any more
                thread.start()
                self._thread = thread

    def hurry(self) -> None:
        """Mark at once what there is, and from now on."""
        self._hurry.set()

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Wait for the marks under way, but not for long."""
        self.hurry()
        if (thread := self._thread) is not None:
            thread.join(patience_s)

    def _mark_soon(self) -> None:
        self._hurry.wait(MARK_AFTER_S)
        if ages := self._unmarked.take():
            self._mark(ages)


_open: WeakSet[MarkThread] = WeakSet()


@atexit.register
def _finish_all() -> None:
    threads, until = list(_open), time.monotonic() + PATIENCE_S
    for each in threads:
        each.hurry()
    for each in threads:
        each.finish(max(0.0, until - time.monotonic()))
