"""Watch user code in this process: calls that do not end in time, and calls that block the event loop.

It can only end the waiting: a thread or a coroutine cannot be ended from outside. In: the loop and the threads. Out: callers are released,
and the process is notified that the loop is blocked or answers again, and that it should be replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flujo_worker.liveness.throttle import SlotThrottle

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.contract.outcome import Event
    from flujo_worker.concurrency.event_loop import Loop
    from flujo_worker.concurrency.threads import Threads

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
LATE_S = 1.0
STARVED_GRACES = 6.0
"""A loop that gets no CPU is given up after so many graces: code that never returns waits for a CPU, too."""


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


class Watchdog:
    """Looks after one loop and its threads.

    Args:
        loop: the process's event loop.
        threads: where sync code runs.
        settings: the grace times and bounds.
        steps: what is done about what is found.
        report: takes the worker's events.
        check: ends the process if it is broken.

    Attributes:
        throttle: lets the process run fewer attempts at once while its loop is late.
    """

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
        self.throttle = SlotThrottle(loop, report)
        self._loop, self._threads, self._steps, self._check = loop, threads, steps, check
        self._grace_s, own = settings.agents.cancel_grace_s, settings.worker
        self._blocked_s, self._most = own.loop_blocked_s, own.max_left_behind
        self._every_s = min(LOOK_EVERY_S, self._grace_s / 4, self._blocked_s / 4)
        self._is_retiring = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flujo-watchdog", daemon=True)

    @property
    def left_behind(self) -> int:
        """Return how many calls, coroutines and threads together, continue though their time and their grace are over."""
        return self._loop.left_behind + self._threads.left_behind(self._grace_s)

    def start(self) -> None:
        """Watch from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._stopping.wait(self._every_s):
            late_s, looked_at = time.monotonic() - looked_at - self._every_s, time.monotonic()
            if late_s > LATE_S:  # the whole process was suspended: the loop gets a turn before it is judged
                continue
            try:
                self._look()
                self.throttle.look()
            except Exception:
                logger.exception("the watchdog failed; it tries again")

    def _look(self) -> None:
        self._check()
        self._loop.ping()
        if not self._loop.is_given_up:  # once it is, no attempt waits for it again
            self._judge()
        for name, place in self._loop.leave_overdue(self._grace_s):
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
        told = culprit if place.is_users and not self._loop.is_starved else why
        logger.warning("%s at %s; no more messages are taken until it answers", told, place.at)
        self._steps.pause()

    def _retire(self, reason: str) -> None:
        if not self._is_retiring:
            self._is_retiring = True
            logger.error("this process retires: %s", reason)
            self._steps.retire(reason)
