"""Notice that this process's Celery worker stops: announce it, and hand back attempts that do not end within a grace time.

Celery's own pools, and ours, wait for running tasks without a limit. In: the start of a graceful stop, for any reason; out: calls.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps

if TYPE_CHECKING:
    from collections.abc import Callable

STOPPING: Final = signal.SIGUSR2
"""The signal to the processes of a prefork pool. Celery and billiard use SIGUSR1 there, and take SIGTERM for themselves."""
AWAY_S: Final = 3.0
"""Seconds for handing back, after the grace times. What a worker could not record is done again by others."""


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


def after(grace_s: float, hand_back: Callable[[], object]) -> None:
    """Call `hand_back` after so many seconds, in a thread."""
    timer = threading.Timer(grace_s, hand_back)
    timer.name, timer.daemon = "flujo-hand-back", True
    timer.start()
