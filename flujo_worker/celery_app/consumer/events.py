"""Celery's events of a worker: what Flower, `celery events` and exporters of metrics listen to."""

from __future__ import annotations

from typing import Any, Final

from celery.events.dispatcher import EventDispatcher

from flujo_worker.celery_app.consumer.private_names import bound_unsent

ON_REQUEST: Final = "flujo_worker.celery_app.consumer.events:EventsOnRequest"
MOST_UNSENT: Final = 10_000
"""Events that wait for a broker that does not take them: it is away, or the user lacks the channel."""


class EventsOnRequest(EventDispatcher):
    """Sends nothing, not even heartbeats, before somebody enables events."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        bound_unsent(self, MOST_UNSENT)

    def send(self, type: str, *args: Any, **fields: Any) -> Any:  # noqa: A002 - Celery's name
        """Send an event if somebody listens to those of tasks."""
        return super().send(type, *args, **fields) if sends_of_tasks(self) else None


def sends_of_tasks(dispatcher: Any) -> bool:
    """Return whether events of tasks are sent; `dispatcher` is a worker's, or None."""
    return bool(dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))
