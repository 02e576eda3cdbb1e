"""Deletes what is kept no longer, a little at a time. Every worker process has a pruner; the fleet takes turns."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from flujo_worker.domain.retention import DAY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flujo_worker.domain.retention import KeepRule
    from flujo_worker.ports import Store

logger = logging.getLogger(__name__)

TURN_S: Final = 5.0
"""Seconds between two turns of the whole fleet."""
SMALLEST, LARGEST = 1, 200
"""How many runs one transaction deletes."""
QUICK_S, SLOW_S = 0.1, 0.4
"""Transactions that take less than this are made larger, and those that take more smaller: runs differ in size a thousandfold."""


class Pruner:
    """Deletes ended runs by their age.

    Args:
        store: where they are.
        rules: for how long which runs are kept.
        per_minute: how many runs are deleted in a minute, by the whole fleet.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        rules: Sequence[KeepRule],
        *,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._rules, self._clock = store, rules, clock
        self._per_turn = max(1, round(per_minute * TURN_S / 60))
        self._size, self._looked_at = LARGEST // 4, float("-inf")

    def prune_in_turn(self) -> int:
        """Delete a turn's share, if it is this process's turn; return how many runs are gone."""
        now = self._clock()
        if not self._rules or now - self._looked_at < TURN_S or not self._store.begin_pruning(TURN_S):
            return 0
        self._looked_at = now
        gone = 0
        while gone < self._per_turn and self._clock() - now < TURN_S / 5:
            share = min(self._size, self._per_turn - gone)
            pruned = self._prune(share)
            gone += pruned
            if pruned < share:
                break
        if gone:
            logger.info("deleted %d runs that are kept no longer", gone)
        while self._clock() - now < TURN_S / 5 and self._store.sweep_blobs(LARGEST, every_s=DAY_S, unused_s=DAY_S):
            pass
        return gone

    def _prune(self, limit: int) -> int:
        began = self._clock()
        gone = self._store.prune_runs(self._rules, limit)
        took = self._clock() - began
        factor = 2.0 if took < QUICK_S else 0.5 if took > SLOW_S else 1.0
        self._size = min(LARGEST, max(SMALLEST, int(self._size * factor)))
        return len(gone)
