"""Work that a thread of this process does again and again: no error ends it, and it can be woken, retired and stopped."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from math import inf
from typing import Final, Self

from flujo_worker.errors import DispatchError, StoreError

STOP_S: Final = 5.0
"""Seconds that `stop` waits for the work under way."""


class RecurringWork:
    """Does `work` after each pause, and when it is woken; errors are logged, and it goes on.

    Args:
        work: what to do. If it takes long, it looks at `stopping`.
        what: names the work in the log.
        thread: the name of its thread.
        every_s: the average pause in seconds; by default it waits until `wake` is set.
        wake: set to have the work done now.
        ends_with_work: whether to do it once more at the end.

    Attributes:
        stopping: set when nothing more is to begin.
    """

    def __init__(
        self,
        work: Callable[[], object],
        what: str,
        thread: str,
        *,
        every_s: float = inf,
        wake: threading.Event | None = None,
        ends_with_work: bool = False,
    ) -> None:
        self._work, self._what, self.every_s, self._ends_with_work = work, what, every_s, ends_with_work
        self.wake, self.stopping = wake or threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=thread, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def retire(self) -> None:
        """Begin nothing more."""
        self.stopping.set()
        self.wake.set()

    def stop(self) -> None:
        """Retire, and wait a few seconds for the work under way."""
        self.retire()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def pause_s(self) -> float:
        """Return the seconds until the work is due, unless it is woken."""
        return self.every_s * random.uniform(0.8, 1.2)  # noqa: S311 - jitter

    def _repeat(self) -> None:
        while self._is_due():
            self._try()
        if self._ends_with_work:
            self._try()

    def _is_due(self) -> bool:
        """Wait until the work is due; return False if it is not to begin any more."""
        self.wake.wait(min(self.pause_s(), threading.TIMEOUT_MAX))
        self.wake.clear()
        return not self.stopping.is_set()

    def _try(self) -> None:
        log = logging.getLogger(type(self).__module__)
        try:
            self._work()
        except (StoreError, DispatchError) as error:
            log.warning("%s postponed: %s", self._what, error)
        except Exception:
            log.exception("%s failed; it will be tried again", self._what)
