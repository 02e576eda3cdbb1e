"""The Celery tasks: read one value, call one thing.

Their names are few and constant, because an unknown name in a header hangs its chord.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.envelope import TASK_ATTEMPT, TASK_SWEEP
from flujo_client.wire import SERIALIZER

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from flujo_worker.host import Host

_OPTIONS: dict[str, Any] = {
    "serializer": SERIALIZER,
    "ignore_result": True,
    "acks_late": True,
    "reject_on_worker_lost": True,
    "max_retries": 0,
    "typing": False,
}


def add(app: Celery, host: Callable[[], Host]) -> None:
    """Register our tasks with an app."""

    def attempt(self: Any, wire: dict[str, Any]) -> None:
        host().attempt(wire, task_id=self.request.id)

    def sweep() -> None:
        host().sweep()

    register: Any = app.task  # its stubs know the decorator only
    register(attempt, name=TASK_ATTEMPT, bind=True, **_OPTIONS)
    register(sweep, name=TASK_SWEEP, **_OPTIONS)
