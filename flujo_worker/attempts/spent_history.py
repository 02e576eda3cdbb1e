"""The spend of earlier attempts at a step, as this process knows it without waiting.

It must not know where spending is stored. In: an envelope. Out: figures, or None.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flujo_client.contract.envelope import Envelope
from flujo_worker.domain.budget import Learned, Place, learned, place_of
from flujo_worker.ports import Ledger

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from flujo_client.config.models import Historical

logger = logging.getLogger(__name__)


class SpentHistory:
    """Expects of an attempt what those before it have cost. Safe for several threads.

    It does not make an attempt wait: what is not known yet, or too old, is read in a thread, once for each pipeline, and counts from the
    next attempt on. A store that does not answer leaves what was known.

    Args:
        ledger: where spending is stored.
        wanted: how much of it counts.
        threads: where it is read.
        clock: seconds that never go back.
    """

    def __init__(
        self, ledger: Ledger, wanted: Historical, threads: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger, self._wanted, self._threads, self._clock = ledger, wanted, threads, clock
        self._known: dict[str, dict[Place, Learned]] = {}
        self._read_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def expected(self, envelope: Envelope) -> Learned | None:
        """Return what attempts at this place have cost, if that is known."""
        reference = envelope.ticket.reference
        if self._is_due(reference):
            self._threads.submit(self._read, reference)
        return self._known.get(reference, {}).get(place_of(envelope.address, envelope.step))

    def _is_due(self, reference: str) -> bool:
        """Return whether to read; to one of those who ask at once."""
        with self._lock:
            now, before = self._clock(), self._read_at.get(reference)
            if before is not None and now - before < self._wanted.refresh_s:
                return False
            self._read_at[reference] = now
            return True

    def _read(self, reference: str) -> None:
        try:
            spent = self._ledger.spent_lately(reference, self._wanted.runs)
            self._known[reference] = learned(spent, least=self._wanted.attempts, quantile=self._wanted.quantile)
        except Exception:
            logger.warning("the cost of attempts of %s could not be read", reference, exc_info=True)
