"""Celery's events of a worker: what Flower, `celery events` and exporters of metrics listen to."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from celery.events.dispatcher import EventDispatcher

if TYPE_CHECKING:
    from flujo_worker.attempts.isolation import DeliveryResult, FailureText


class EventsOnRequest(EventDispatcher):
    """Sends nothing, not even heartbeats, until events are enabled."""

    def send(self, type: str, *args: Any, **fields: Any) -> Any:  # noqa: A002 - Celery's name
        """Send an event if task events are enabled."""
        return super().send(type, *args, **fields) if _sends_of_tasks(self) else None


class PoolEvents:
    """Sends the events of messages that bypass Celery's tracer, as the tracer would.

    The consumer's thread sends them, in order: the event loop waits for no socket.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()

    def begun(self, task: Any) -> None:
        """Report that a message was received and is worked on."""
        shown = {"name": task.name, "args": task.headers["argsrepr"], "kwargs": task.headers["kwargsrepr"]}
        self._put(task, "task-received", **shown, root_id=task.id, parent_id=None, retries=0, eta=None, expires=None)
        self._put(task, "task-started")

    def ended(self, task: Any, delivered: DeliveryResult | None) -> None:
        """Report the end of the work. A delivery that merged nothing is rejected: that hides no end that its attempt had before."""
        if delivered is None or delivered.disposition != "merged":
            self._put(task, "task-rejected")
        else:
            event, fields = event_of_end(delivered.failure, time.time() - task.time_start)
            self._put(task, event, **fields)

    def _put(self, task: Any, type_: str, **fields: Any) -> None:
        if _sends_of_tasks(task.consumer.event_dispatcher):
            self._waiting.append((type_, {"uuid": task.id, "timestamp": time.time(), **fields}))
            task.consumer.call_soon(self._send, task.consumer)

    def _send(self, consumer: Any) -> None:
        while self._waiting and consumer.event_dispatcher:
            type_, fields = self._waiting.popleft()
            consumer.event_dispatcher.send(type_, **fields)


def event_of_end(failure: FailureText | None, runtime: float) -> tuple[str, dict[str, Any]]:
    """Return the event of an attempt's end, and its fields; `runtime` is in seconds."""
    if failure is None:
        return "task-succeeded", {"result": "None", "runtime": runtime}
    return "task-failed", {"exception": f"StepFailed({failure.message!r})", "traceback": failure.traceback}


def _sends_of_tasks(dispatcher: Any) -> bool:
    """Return whether events of tasks are sent; `dispatcher` is a worker's, or None."""
    return bool(dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))
