"""Whether a Celery worker takes messages: paused for a while, or never again, because the process retires and is to be replaced.

It must not touch what the worker has taken already. In: Celery's consumer; out: nothing.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, NoReturn

from celery.worker import state

from flujo_worker.errors import RETIRED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)


class Intake:
    """The intake of a consumer. Thread-safe.

    Args:
        consumer: Celery's.
        queues: those that it concerns; all that the consumer takes messages from when None.
    """

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
    """Stop this worker in order."""
    os.kill(os.getpid(), signal.SIGTERM)


def stop_parent() -> None:
    """Stop the worker whose pool this process belongs to gracefully."""
    os.kill(os.getppid(), signal.SIGTERM)
