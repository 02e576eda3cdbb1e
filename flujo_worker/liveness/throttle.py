"""Let a process run fewer attempts at once while its event loop is late, and report it.

It must not stop what runs. In: the loop's lateness. Out: the number of attempts that may run, and events of the worker that say why.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from flujo_client.contract.outcome import Event
from flujo_worker.domain.starvation import attempts_allowed

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from flujo_worker.concurrency.event_loop import Loop

    class PoolSlots(Protocol):
        """What takes attempts: the worker's pool."""

        @property
        def most(self) -> int:
            """Return how many attempts may run at once at most."""

        @property
        def running(self) -> int:
            """Return how many run."""

        def allow(self, attempts: int) -> None:
            """Run only so many at once from now on."""


logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
REPORT_EVERY_S: Final = 10.0


class SlotThrottle:
    """Adapts the slots of one process.

    Args:
        loop: whose lateness decides.
        report: takes the events `worker.slowed` and `worker.recovered`.
        clock: seconds that never go back.

    Attributes:
        slots: what is adapted; None until the process has some of its own.
    """

    def __init__(
        self, loop: Loop, report: Callable[[Event], object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop, self._report, self._clock = loop, report, clock
        self.slots: PoolSlots | None = None
        self._allowed: int | None = None
        self._looked = self._read()
        self._reported_at: float | None = None

    def look(self) -> None:
        """Adapt the slots, once a second."""
        at, late_s, waited_s = self._read()
        seconds = at - self._looked[0]
        if self.slots is None or seconds < EVERY_S:
            return
        late, waited = (late_s - self._looked[1]) / seconds, (waited_s - self._looked[2]) / seconds
        self._looked = at, late_s, waited_s
        before = self.slots.most if self._allowed is None else self._allowed
        self._allowed = attempts_allowed(before, self.slots.most, self.slots.running, late)
        if self._allowed != before:
            self.slots.allow(self._allowed)
        self._tell(at, self._allowed, self.slots.most, late, waited)

    def _read(self) -> tuple[float, float, float]:
        return self._clock(), self._loop.late_s, self._loop.waited_for_cpu_s

    def _tell(self, at: float, allowed: int, most: int, late: float, waited: float) -> None:
        if allowed == most:
            if self._reported_at is not None:
                self._reported_at = None
                self._report(Event("worker.recovered", {"at_once": most}, at=time.time()))
            return
        if self._reported_at is not None and at < self._reported_at + REPORT_EVERY_S:
            return
        data = {"at_once": allowed, "of": most, "late": _percent(late), "waited_for_cpu": _percent(waited)}
        if self._reported_at is None:
            logger.warning("this worker takes %s of %s attempts at once: its event loop is late", allowed, most)
        self._reported_at = at
        self._report(Event("worker.slowed", data, "warning", at=time.time()))


def _percent(share: float) -> int:
    return min(100, round(100 * share))
