"""Watch user code in this process: calls that do not end in time, and calls that block the event loop or make it late.

It can only end the waiting: a thread or a coroutine cannot be ended from outside. In: the loop and the threads. Out: callers are released,
and the process is notified that the loop is blocked or answers again, and that it should be replaced. A process whose loop is late runs
fewer attempts at once; what runs is not stopped. Memory that a burst of attempts has freed is returned to the system.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from flujo_client.config.manager import Settings
from flujo_client.contract.outcome import Event
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.native import hub_watch, native_thread
from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.concurrency.threads import Threads
from flujo_worker.domain.starvation import OWN_WORK, SLOW_DOWN, attempts_allowed

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
LATE_S = 1.0
STARVED_GRACES = 6.0
"""A loop that gets no CPU is given up after so many graces: code that never returns waits for a CPU, too."""
THROTTLE_EVERY_S: Final = 0.5
REPORT_EVERY_S: Final = 10.0
WORTH_BYTES: Final = 16 << 20
"""The growth of memory since its least from which it is returned: the call takes milliseconds."""
GARBAGE_BYTES: Final = 64 << 20
"""Garbage is searched for again when memory has grown by so much since the last search, or by a quarter if that is more."""
RARELY: Final = 1000
"""The interpreter's searches among new objects before one among older objects, in a process where the watchdog begins those."""
COLLECT_EVERY_S: Final = 10.0
"""Seconds between two searches when nothing runs, because each takes up to 0.4 s."""


class PoolSlots(Protocol):
    """The slots of the worker's pool, which takes attempts."""

    @property
    def most(self) -> int:
        """Return how many attempts may run at once at most."""

    @property
    def running(self) -> int:
        """Return how many run."""

    def allow(self, attempts: int) -> None:
        """Run only so many at once from now on."""


@dataclass(slots=True)
class Steps:
    """The reactions of the process to its watchdog, or to an operator. The owner of the process replaces them.

    Attributes:
        pause: take no more messages.
        resume: take messages again.
        withdraw: take no more messages, for good.
        hand_back: begin to give all attempts to other workers, without a loss.
        retire: stop gracefully and be replaced; gets the reason.
        stop: stop gracefully, as SIGTERM does.
    """

    pause: Callable[[], object] = lambda: None
    resume: Callable[[], object] = lambda: None
    withdraw: Callable[[], object] = lambda: None
    hand_back: Callable[[], object] = lambda: None
    retire: Callable[[str], object] = lambda _: None
    stop: Callable[[], object] = lambda: None


class Watchdog(RecurringWork):
    """Looks after one loop and its threads; `check` ends the process if it is broken."""

    def __init__(
        self,
        loop: Loop,
        threads: Threads,
        settings: Settings,
        steps: Steps,
        *,
        report: Callable[[Event], object] = lambda _: None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self.throttle, self._memory = SlotThrottle(loop, report), FreedMemory(lambda: loop.is_idle, threads.submit)
        self._loop, self._threads, self._steps, self._check = loop, threads, steps, check
        self._grace_s, own = settings.agents.cancel_grace_s, settings.worker
        self._blocked_s, self._most = own.loop_blocked_s, own.max_left_behind
        self._is_retiring, self._look_at_hub = False, hub_watch()
        every_s = min(LOOK_EVERY_S, self._grace_s / 4, self._blocked_s / 4)
        super().__init__(self._watch, "the watchdog", "flujo-watchdog", every_s=every_s)
        self._thread, self._looked_at = native_thread(self._repeat, "flujo-watchdog"), time.monotonic()
        self._resumed_at = -math.inf

    @property
    def left_behind(self) -> int:
        """Return how many calls, coroutines and threads together, continue though their time and their grace are over."""
        return self._loop.left_behind + self._threads.left_behind(self._grace_s)

    def pause_s(self) -> float:
        return self.every_s  # the bounds on what it notices are multiples of it

    def _watch(self) -> None:
        now = time.monotonic()
        late_s, self._looked_at = now - self._looked_at - self.every_s, now
        if late_s > LATE_S:  # the whole process was suspended
            self._loop.ping()
            self._resumed_at = now
        if self._loop.silent_s and now < self._resumed_at + self._blocked_s:
            return  # the loop gets a turn before it is judged
        self._look(now)
        self.throttle.look()
        self._memory.look()

    def _look(self, now: float) -> None:
        """Judge by the time when the look began, because the process may be suspended during it."""
        self._check()
        self._look_at_hub(self._blocked_s)
        self._loop.ping()
        if not self._loop.is_given_up:  # once it is, no attempt waits for it again
            self._judge()
        for name, place in self._loop.leave_overdue(self._grace_s, now=now, runs_since=self._resumed_at):
            logger.warning("%s: %s did not end in time and was left behind, at %s", name, place.function, place.at)
        if self._is_blocked_for_good():
            self._steps.hand_back()
            self._loop.give_up()
        if self._loop.is_given_up:
            self._retire("its event loop is blocked by code that does not return")
        elif (count := self.left_behind) >= self._most:
            self._retire(f"{count} calls were left behind and keep running")

    def _is_blocked_for_good(self) -> bool:
        """Return whether the loop has blocked for longer than the grace of a call that it left behind, and not because it gets no CPU."""
        loop = self._loop
        if loop.answers.is_set() or not loop.left_behind or loop.silent_s <= self._grace_s:
            return False
        return not loop.is_starved or loop.silent_s > STARVED_GRACES * self._grace_s

    def _judge(self) -> None:
        if self._loop.silent_s > self._blocked_s:
            self._bark()
        elif not self._loop.answers.is_set():
            self._loop.answers.set()
            logger.warning("the event loop answers again")
            self._steps.resume()

    def _bark(self) -> None:
        if not self._loop.answers.is_set():
            return
        self._loop.answers.clear()
        name, place = self._loop.blame()
        culprit = f"{name or 'a task'} blocks the event loop: {place.function}"
        why = "this process gets too little CPU" if self._loop.is_starved else "the event loop does not answer"
        cause = culprit if place.is_users and not self._loop.is_starved else why
        logger.warning("%s at %s; no more messages are taken until it answers", cause, place.at)
        self._steps.pause()

    def _retire(self, reason: str) -> None:
        if not self._is_retiring:
            self._is_retiring = True
            logger.error("this process retires: %s", reason)
            self._steps.retire(reason)


class SlotThrottle:
    """Adapts the slots of one process to its loop's lateness, and reports `worker.slowed` and `worker.recovered`.

    Attributes:
        slots: what is adapted; None until the process has some of its own.
    """

    def __init__(
        self, loop: Loop, report: Callable[[Event], object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop, self._report, self._clock = loop, report, clock
        self.slots: PoolSlots | None = None
        self._allowed: int | None = None
        self._late, self._is_crowded = deque[float](maxlen=OWN_WORK), False
        self._looked = self._read()
        self._reported_at: float | None = None

    def look(self) -> None:
        """Adapt the slots, twice a second."""
        at, late_s, waited_s = self._read()
        seconds = at - self._looked[0]
        if self.slots is None or seconds < THROTTLE_EVERY_S:
            return
        late, waited = (late_s - self._looked[1]) / seconds, (waited_s - self._looked[2]) / seconds
        self._looked = at, late_s, waited_s
        before = self.slots.most if self._allowed is None else self._allowed
        self._late.append(late)
        if late > SLOW_DOWN:
            self._is_crowded = waited > late / 2
        self._allowed = attempts_allowed(
            before, self.slots.most, self.slots.running, [*self._late], is_crowded=self._is_crowded
        )
        if self._allowed != before:
            self.slots.allow(self._allowed)
        self._announce(at, self._allowed, self.slots.most, late, waited)

    def _read(self) -> tuple[float, float, float]:
        return self._clock(), self._loop.late_s, self._loop.waited_for_cpu_s

    def _announce(self, at: float, allowed: int, most: int, late: float, waited: float) -> None:
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


class FreedMemory:
    """Collects garbage before it takes much memory, and returns to the system what a burst of attempts has freed.

    The interpreter counts objects alone, and in `flujo worker` rarely collects; the C library would keep what is free for the next burst.

    Args:
        is_idle: returns whether no attempt's code runs.
        submit: calls a function in a thread, because garbage may have finalizers that do not end.
        resident: returns how many bytes of memory the process has.
        trim: returns what is free; None where the C library cannot.
    """

    def __init__(
        self,
        is_idle: Callable[[], bool],
        submit: Callable[[Callable[[], None]], object],
        *,
        resident: Callable[[], int] | None = None,
        trim: Callable[[int], object] | None = None,
    ) -> None:
        self._is_idle, self._submit, self._resident = is_idle, submit, resident or resident_bytes
        self._trim = trim or getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._least = self._resident()
        self._most, self._is_begun, self._collected_at = self._least + GARBAGE_BYTES, False, -math.inf

    def look(self) -> None:
        """Collect garbage and return free memory if nothing runs and some may be free, or if much of the memory may be garbage."""
        now, is_idle = self._resident(), self._is_idle()
        most = self._least + WORTH_BYTES if is_idle else self._most if _collects_rarely() else math.inf
        if now > most and not self._is_begun:
            self._is_begun = True
            self._least = now if is_idle else self._least
            self._submit(self._collect)
        self._least = min(self._least, now)

    def _collect(self) -> None:
        began = time.monotonic()
        is_due = self._resident() > self._most or began > self._collected_at + COLLECT_EVERY_S
        if is_due and _collects_rarely():
            gc.collect()
            self._collected_at = began
        if self._trim is not None:
            self._trim(0)
        now = self._resident()
        self._most, self._is_begun = now + max(GARBAGE_BYTES, now // 4), False


def _collects_rarely() -> bool:
    """Return whether this process leaves the search for older garbage to the watchdog."""
    return gc.get_threshold()[1] >= RARELY


def resident_bytes() -> int:
    """Return the memory of this process that is not swapped out; 0 where there is no /proc."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
