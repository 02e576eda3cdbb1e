"""What a Celery worker does with our attempts when it stops: it says so, and those that do not end within a grace time are handed back.

Celery's own pools, and ours, wait for what runs without a limit. In: the start of an orderly stop, whatever caused it; out: a call.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps

if TYPE_CHECKING:
    from collections.abc import Callable

HAND_BACK: Final = signal.SIGUSR2
"""The signal to the processes of a prefork pool. Celery and billiard use SIGUSR1 there, and take SIGTERM for themselves."""


def handing_back(
    after_s: float, hand_back: Callable[[Any], object], *, on_stopping: Callable[[], object]
) -> type[bootsteps.StartStopStep]:
    """Return the worker's step that calls `on_stopping` when it begins to stop, and `hand_back` with the worker so many seconds later."""

    class HandingBack(bootsteps.StartStopStep):
        requires = ("celery.worker.components:Pool",)

        def close(self, worker: Any) -> None:
            on_stopping()
            timer = threading.Timer(after_s, hand_back, (worker,))
            timer.name, timer.daemon = "flujo-hand-back", True
            timer.start()

    return HandingBack


def hand_back_on_signal(hand_back: Callable[[], object]) -> None:
    """Call `hand_back` when the main process of a prefork pool sends `HAND_BACK` to this one. To be called before threads are started.

    A thread waits for the signal: a handler would run in the middle of a task, and only once the main thread does something.
    """

    def wait() -> None:
        signal.sigwait([HAND_BACK])
        hand_back()

    signal.pthread_sigmask(signal.SIG_BLOCK, [HAND_BACK])
    threading.Thread(target=wait, name="flujo-hand-back", daemon=True).start()
