"""The fleet's settings of circuit breakers and rate limits, as this process knows them.

They are read from the store while attempts ask, once a second at most, so that an operator's change counts within a second or two.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from flujo_client.config.model_guards import FleetGuards
from flujo_client.contract.limits import GuardRow
from flujo_worker.errors import StoreError

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0


class LiveGuards:
    """Reads the settings again and again: `known` are those that were read last, `first` the rows until then. Safe for several threads."""

    def __init__(
        self, read: Callable[[], Sequence[GuardRow]], first: Sequence[GuardRow] = (), *, every_s: float = EVERY_S
    ) -> None:
        self._read, self._every_s = read, every_s
        self._lock, self._read_at = threading.Lock(), float("-inf")
        self._rows, self.known = list(first), FleetGuards(first)

    def current(self) -> FleetGuards:
        """Return the settings, read again if they may have changed; those that are known if the store is away. It may block."""
        if time.monotonic() - self._read_at >= self._every_s and self._lock.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._lock.release()
        return self.known

    def _refresh(self) -> None:
        began = time.monotonic()
        try:
            rows = list(self._read())
        except StoreError as error:
            logger.warning("settings of breakers and rate limits not read, the known ones count: %s", error)
        else:
            if rows != self._rows:
                self._rows, self.known = rows, FleetGuards(rows)
        self._read_at = began
