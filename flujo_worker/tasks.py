"""The Celery tasks: read one value, call one thing.

Their names are few and constant, because an unknown name in a header hangs its chord. Of the deliveries that belong to a chord, one
for each lane is its part: the last. All others leave the chord, and Celery acknowledges them without counting a part.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore

from flujo_client.contract.envelope import (
    TASK_ATTEMPT,
    TASK_HEALTH_CHECK,
    TASK_JOIN,
    TASK_RESUME,
    TASK_START,
    TASK_SWEEP,
)
from flujo_client.wire import SERIALIZER

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from flujo_worker.host import Host

logger = logging.getLogger(__name__)

_OPTIONS: dict[str, Any] = {
    "serializer": SERIALIZER,
    "ignore_result": True,
    "acks_late": True,
    "reject_on_worker_lost": True,
    "max_retries": 0,
    "typing": False,
    "shared": False,  # Celery would give them to every other app of the process as well, with this one's host
}


def add(app: Celery, host: Callable[[], Host]) -> None:
    """Register our tasks with an app."""

    def attempt(self: Any, wire: dict[str, Any]) -> None:
        _deliver(self, lambda: host().attempt(wire, task_id=self.request.id))

    def join(self: Any, _parts: list[Any], wire: dict[str, Any]) -> None:
        _deliver(self, lambda: host().join(wire, task_id=self.request.id))

    def sweep() -> None:
        host().sweep()

    def health_check() -> None:
        host().health_check()

    register: Any = app.task  # its stubs know the decorator only
    register(attempt, name=TASK_ATTEMPT, bind=True, **_OPTIONS)
    register(attempt, name=TASK_START, bind=True, **_OPTIONS)
    register(attempt, name=TASK_RESUME, bind=True, **_OPTIONS)
    register(join, name=TASK_JOIN, bind=True, **_OPTIONS)
    register(sweep, name=TASK_SWEEP, **_OPTIONS)
    register(health_check, name=TASK_HEALTH_CHECK, **_OPTIONS)


def _deliver(task: Any, carry_out: Callable[[], bool]) -> None:
    """Carry out a delivery; one that does not count as a part of its chord is none of the chord's any more when it returns.

    An error is no part either: it would fail the chord for good, while the sweeper has the work done by another delivery. It raises
    Ignore, as Celery means it; what goes well does not, for that costs fifty times as much, in copies of the traceback.
    """
    if not task.request.group:
        carry_out()
        return
    try:
        counts = carry_out()
    except Exception as error:
        logger.exception("message %s failed", task.request.id)
        raise Ignore from error
    if not counts:
        for (
            request
        ) in task.request_stack.stack:  # a class of the application's with a __call__ of its own has made a copy
            request.chord = None
