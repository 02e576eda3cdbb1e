"""Which keys this process lacks: they sign messages, or encrypt values (ADR 48). With any it takes no more work, and says which.

Clients leave a mark of each of their keys with each run. Another secret is behind a key's id here if clients use that id and none of them has
the mark of this process. In: the keys of this process, and what could not be read with them. Out: the names of those that it lacks.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from flujo_client.contract.outcome import Event
from flujo_worker.errors import StoreError
from flujo_worker.store.reencrypt import clients_key_marks

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.config.manager import Settings

logger = logging.getLogger(__name__)

FIRST_LOOK_S, LONGEST_S = 5.0, 300.0
"""Seconds until the next look for a client with the same keys, and at most: each wait is twice as long, until one is found."""
_PATIENCE_S: Final = 1.0
"""Seconds in which the marks are read once at most, whatever arrives: forged messages cost next to nothing."""


class OwnKeys:
    """Knows which keys this process lacks. It never gets one: keys are read when a process starts. Thread-safe.

    `withdraw` takes no more messages; `report` takes the event `worker.lacks_key`.
    """

    def __init__(
        self, settings: Settings, withdraw: Callable[[], object], report: Callable[[Event], object] = lambda _: None
    ) -> None:
        self._url, self._report, self._withdraw = settings.database(), report, withdraw
        self._marks = dict(mark.split(":") for mark in settings.key_marks())
        self._unconfirmed = set(self._marks)
        self._looked_at, self._wait_s = time.monotonic(), FIRST_LOOK_S
        self._doubted_at = float("-inf")
        self._lacking = set[str]()
        self._lock = threading.Lock()

    @property
    def is_lacking(self) -> bool:
        """Return whether this process must claim nothing more."""
        return bool(self._lacking)

    @property
    def signs_wrongly(self) -> bool:
        """Return whether other processes refuse what this one would send."""
        return any(key.startswith("signing_keys.") for key in self._lacking)

    def check(self) -> None:
        """Look for clients with the same secrets, unless one was found for each key."""
        if not self._unconfirmed:
            return
        try:
            used = clients_key_marks(self._url)
        except StoreError as error:
            logger.info("%s", error)
            return
        for key in sorted(self._unconfirmed):
            if f"{key}:{self._marks[key]}" in used:
                self._unconfirmed.discard(key)
            elif any(mark.startswith(f"{key}:") for mark in used):
                self._lack(key, "has another secret than clients for")

    def look(self) -> None:
        """Check again now and then."""
        if time.monotonic() - self._looked_at > self._wait_s:
            self._looked_at, self._wait_s = time.monotonic(), min(2 * self._wait_s, LONGEST_S)
            self.check()

    def lacks(self, key: str) -> bool:
        """Return whether this process lacks the key of what could not be read; False: that was changed, or its sender has another secret.

        A key is named by its setting and its id, such as `signing_keys.2026a`.
        """
        if key not in self._marks:
            self._lack(key, "lacks")
        elif key not in self._lacking and time.monotonic() - self._doubted_at > _PATIENCE_S:
            self._doubted_at = time.monotonic()
            self.check()
        return key in self._lacking

    def _lack(self, key: str, how: str) -> None:
        with self._lock:
            is_new = key not in self._lacking
            self._lacking.add(key)
            keys = sorted(self._lacking)
        if is_new:
            logger.error("this worker %s %s: it takes no more work until it is started with it", how, key)
            self._report(Event("worker.lacks_key", {"keys": keys}, "error", at=time.time()))
            self._withdraw()
