"""Lets waiting runs begin as others end: one admission at a time in each process, for all runs that ended since the last."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.ports import Admitted

AGAIN_S: Final = 0.02
"""Seconds until an admission that could not check all gates is repeated, at most `TRIES` times; then a sweep does it."""
TRIES: Final = 10
EAGER_S, LAZY_S = 0.02, 0.25
"""The minimum number of seconds between admissions, after one that admitted runs, and after one that admitted none. Ends in between are handled
together: if no run waits, an end costs almost nothing."""


class AdmissionThread(RecurringWork):
    """Admits runs in a separate thread, so that no attempt waits for it; at the end once more, for the runs that have ended until then.

    It calls `admit` with the runs that have ended, and with gates to check again. What fails is left to a sweep.
    """

    def __init__(self, admit: Callable[[Collection[str], Collection[str]], Admitted]) -> None:
        super().__init__(self._admit_ended, "admission", "flujo-admission", ends_with_work=True)
        self._admit, self._ended, self._lock, self._next_at = admit, list[str](), threading.Lock(), float("-inf")

    def ended(self, run: str) -> None:
        """Note the end of a run that had passed gates."""
        with self._lock:
            self._ended.append(run)
        self.wake.set()

    def _admit_ended(self) -> None:
        self.stopping.wait(self._next_at - time.monotonic())
        ended = self._taken()
        if not ended:
            return
        admitted = self._admit(ended, ())
        begun, tries = len(admitted.keys), 0
        while admitted.again and tries < TRIES:
            tries += 1
            self.stopping.wait(AGAIN_S)
            admitted = self._admit(self._taken(), admitted.again)
            begun += len(admitted.keys)
        self._next_at = time.monotonic() + (EAGER_S if begun else LAZY_S)

    def _taken(self) -> list[str]:
        with self._lock:
            ended, self._ended = self._ended, []
        return ended
