"""Stop a Celery worker from taking messages: for a while, or for good because the process stops, or retires and must be replaced.

A stop is announced, and attempts that do not end within a grace time are handed back: Celery's own pools, and ours, wait for running tasks
without a limit. It must not touch what the worker has taken already. In: Celery's consumer, and the start of a stop; out: calls.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, NoReturn

from celery import bootsteps
from celery.worker import state

from flujo_worker.errors import RETIRED

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer

STOPPING: Final = signal.SIGUSR2
"""The signal to the processes of a prefork pool. Celery and billiard use SIGUSR1 there, and take SIGTERM for themselves."""
AWAY_S: Final = 3.0
"""Seconds for handing back, after the grace times. Other workers do again what this one could not record."""


def on_stop(begin_stop: Callable[[Any], object]) -> type[bootsteps.StartStopStep]:
    """Return the worker's step that calls `begin_stop` with the worker when it begins to stop."""

    class BeginningStop(bootsteps.StartStopStep):
        requires = ("celery.worker.components:Pool",)

        def close(self, worker: Any) -> None:
            begin_stop(worker)

    return BeginningStop


def on_stop_signal(begin_stop: Callable[[], object]) -> None:
    """Call `begin_stop` when the main process of a prefork pool sends `STOPPING` to this one. To be called before threads are started.

    A thread waits for the signal: a handler would run in the middle of a task, and only once the main thread does something.
    """

    def wait() -> None:
        signal.sigwait([STOPPING])
        begin_stop()

    signal.pthread_sigmask(signal.SIG_BLOCK, [STOPPING])
    threading.Thread(target=wait, name="flujo-stopping", daemon=True).start()


def after(seconds: float, act: Callable[[], object]) -> None:
    """Call `act` after that many seconds, in a daemon thread."""
    timer = threading.Timer(seconds, act)
    timer.name, timer.daemon = "flujo-hand-back", True
    timer.start()


class Intake:
    """The intake of Celery's consumer: from these queues, or from all when None. Thread-safe."""

    def __init__(self, consumer: Consumer, queues: Collection[str] | None = None) -> None:
        self._consumer, self._ours = consumer, queues
        self._queues: list[str] = []
        self._is_withdrawn = False

    def pause(self) -> None:
        """Take no more messages; one that is on its way goes back to its queue."""
        self._consumer.call_soon(self._pause)

    def resume(self) -> None:
        """Take messages again."""
        self._consumer.call_soon(self._resume)

    def withdraw(self) -> None:
        """Take no more messages, whatever `resume` says."""
        self._is_withdrawn = True
        self.pause()

    def _pause(self) -> None:
        consumed = self._consumer.app.amqp.queues.consume_from
        self._queues += [queue for queue in consumed if self._ours is None or queue in self._ours]
        for queue in self._queues:
            self._consumer.cancel_task_queue(queue)

    def _resume(self) -> None:
        while self._queues and not self._is_withdrawn:
            self._consumer.add_task_queue(self._queues.pop())


def retire() -> None:
    """Stop this worker in order, as SIGTERM does, with an exit code that says that it wants to be replaced."""
    if state.should_stop in (None, False):
        state.should_stop = RETIRED  # type: ignore[assignment]  # Celery puts exit codes there as well


def retire_child(hand_back: Callable[[], object]) -> NoReturn:
    """Hand back what this process of a prefork pool works on, and end it; the pool starts another one."""
    hand_back()
    os._exit(RETIRED)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stop_parent() -> None:
    """Stop the worker whose pool this process belongs to gracefully."""
    os.kill(os.getppid(), signal.SIGTERM)
