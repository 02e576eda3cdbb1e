"""Lets waiting runs begin as others end: one admission at a time in each process, for all runs that ended since the last."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from flujo_worker.errors import StoreError
from flujo_worker.ports import Admitted

logger = logging.getLogger(__name__)

AGAIN_S: Final = 0.02
"""Seconds until an admission that could not check all gates is repeated, at most `TRIES` times; then a sweep does it."""
TRIES: Final = 10
EAGER_S, LAZY_S = 0.02, 0.25
"""The minimum of seconds between admissions, after one that admitted runs, and after one that admitted none. Ends in between are handled
together: if no run waits, an end costs almost nothing."""


class AdmissionThread:
    """Admits runs in a separate thread, so that no attempt waits for it."""

    def __init__(self) -> None:
        self._ended, self._next_at = list[str](), float("-inf")
        self._lock, self._wake, self._stopping = threading.Lock(), threading.Event(), threading.Event()

    def start(self, admit: Callable[[Collection[str], Collection[str]], Admitted]) -> None:
        """Admit from now on, by calling `admit` with the runs that have ended, and with gates to check again."""
        self._admit = admit
        self._thread = threading.Thread(target=self._admit_forever, name="flujo-admission", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Admit again, for the runs that have ended until now."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout=5)

    def ended(self, run: str) -> None:
        """Remember that a run has ended that has passed gates."""
        with self._lock:
            self._ended.append(run)
        self._wake.set()

    def _admit_forever(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._stopping.wait(self._next_at - time.monotonic())
            self._wake.clear()
            try:
                self._admit_ended()
            except StoreError as error:
                logger.warning("admission left to the sweeper: %s", error)
            except Exception:
                logger.exception("admission failed; a sweep tries again")

    def _admit_ended(self) -> None:
        ended = self._taken()
        if not ended:
            return
        admitted = self._admit(ended, ())
        begun, tries = len(admitted.keys), 0
        while admitted.again and tries < TRIES:
            tries += 1
            self._stopping.wait(AGAIN_S)
            admitted = self._admit(self._taken(), admitted.again)
            begun += len(admitted.keys)
        self._next_at = time.monotonic() + (EAGER_S if begun else LAZY_S)

    def _taken(self) -> list[str]:
        with self._lock:
            ended, self._ended = self._ended, []
        return ended
