"""Delete rows after their retention, in small transactions. Every worker process has a pruner; they take turns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from flujo_client.config.models import Retention
from flujo_worker.domain.retention import DAY_S, retention_rules
from flujo_worker.ports import RetentionStore

logger = logging.getLogger(__name__)

TURN_S: Final = 5.0
"""Seconds between two turns of the whole fleet."""
TALLY_EVERY_S: Final = 10.0
"""Seconds between two additions of ended work to the counters."""
SMALLEST, LARGEST = 1, 200
"""The maximum number of runs that one transaction deletes."""
QUICK_S, SLOW_S = 0.1, 0.4
"""Transactions that take less than this are made larger, and those that take more smaller: runs differ in size a thousandfold."""

SUMMARIES_PER_RUN: Final = 2
"""The number of summaries that a turn deletes for each run that it may delete, so that they become fewer while runs are deleted."""

UNITS_S: Final = 60.0
"""The minimum seconds for which units are kept after their step has ended, for readers that follow the run."""
PLACES, UNITS = 200, 2000
"""The maximum places that one statement examines, and units that it deletes."""


class UnitPruner:
    """Deletes the units of durable steps that have ended, a little at a time."""

    def __init__(self, retention: RetentionStore, settings: Retention, *, waits_s: float = 0.0) -> None:
        self._retention, self._older_s, self._waits_s = retention, max(UNITS_S, settings.units_days * DAY_S), waits_s
        self._after: tuple[str, str] | None = None

    def prune(self) -> bool:
        """Look at the next places; return False if the next sweep is to go on."""
        after = self._after or ("", "")
        pruned = self._retention.prune_units(self._older_s, after, places=PLACES, units=UNITS, waits_s=self._waits_s)
        is_full = pruned.gone == UNITS
        self._after = after if is_full else pruned.after
        return self._after is None


class Pruner:
    """Deletes ended runs by their age. What is not exported yet waits `waits_s` seconds longer."""

    def __init__(
        self,
        retention: RetentionStore,
        settings: Retention,
        *,
        waits_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retention, self._rules, self._clock = retention, retention_rules(settings), clock
        self._is_summarized, self._summary_s = settings.keep_summaries, settings.summary_days * DAY_S
        self._waits_s = waits_s
        self._per_turn = max(1, round(settings.runs_per_minute * TURN_S / 60))
        self._size, self._looked_at = LARGEST // 4, float("-inf")

    def prune_in_turn(self) -> int:
        """Delete a turn's share, if it is this process's turn; return how many runs are gone."""
        now = self._clock()
        if not self._rules or now - self._looked_at < TURN_S or not self._retention.begin_pruning(TURN_S):
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
            logger.info("deleted %d runs whose retention is over", gone)
        if self._summary_s:
            self._retention.prune_summaries(self._summary_s, SUMMARIES_PER_RUN * self._per_turn)
        while self._clock() - now < TURN_S / 5 and self._retention.sweep_blobs(LARGEST, every_s=DAY_S, unused_s=DAY_S):
            pass
        return gone

    def _prune(self, limit: int) -> int:
        began = self._clock()
        gone = self._retention.prune_runs(self._rules, limit, is_summarized=self._is_summarized, waits_s=self._waits_s)
        took = self._clock() - began
        factor = 2.0 if took < QUICK_S else 0.5 if took > SLOW_S else 1.0
        self._size = min(LARGEST, max(SMALLEST, int(self._size * factor)))
        return len(gone)
