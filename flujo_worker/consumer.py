"""Between a queue's list and Celery's consumer: no item ends a worker, whatever consumer the app has.

Stock Celery 5.7 exits on an item that is no message, on a body of type `application/data`, and on one that decodes to a number; so
does the next worker that the message is given to (celery/celery#4308). What kombu pops is screened here before kombu reads it, and
what Celery's handler fails on is refused. Messages in lists that are not ours, for tasks that are not ours, keep the app's rules.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker.consumer import Consumer
from celery.worker.consumer.tasks import Tasks

from flujo_client.wire import MAX_BYTES
from flujo_worker.errors import WireError
from flujo_worker.screen import screen

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from celery import Celery

    from flujo_client.config import Settings
    from flujo_worker.refusals import Refusals

logger = logging.getLogger(__name__)


class Gate:
    """Screens what one worker process reads.

    Args:
        app: whose worker it is.
        settings: our queues, and the largest message.
        refusals: records what is refused.
        own: the names of our tasks.
        is_alone: whether the app carries nothing but our tasks, so that every list is ours.
    """

    def __init__(
        self, app: Celery, settings: Settings, refusals: Refusals, own: Container[str], *, is_alone: bool
    ) -> None:
        self._refusals, self._own, self._is_alone = refusals, own, is_alone
        self._others: Container[str] = () if is_alone else app.tasks
        self._queues = {settings.worker.attempts_queue, settings.worker.control_queue}
        self._max_bytes = settings.limits.message_max_bytes or MAX_BYTES
        self._reading = ""

    def guard(self, consumer: Any) -> None:
        """Stand before a consumer that is about to read; once for each connection that it makes."""
        client = consumer.task_consumer.channel.client
        separator = consumer.task_consumer.channel.sep
        client.parse_response = partial(self._pop, client.parse_response, separator)
        consumer.refuse = partial(self.refuse, consumer)
        make = type(consumer).create_task_handler
        consumer.create_task_handler = lambda *args, **kwargs: partial(
            self._handle, consumer, make(consumer, *args, **kwargs)
        )

    def _pop(self, read: Callable[..., Any], separator: str, connection: Any, command: str, **options: Any) -> Any:
        """Read an answer of Redis; give nothing instead of an item that does not pass, as if the list had been empty."""
        answer = read(connection, command, **options)
        if command != "BRPOP" or not answer:
            return answer
        key, item = answer
        self._reading = key.decode().rsplit(separator, 1)[0]
        try:
            screen(item, is_ours=self._is_ours(), own=self._own, others=self._others, max_bytes=self._max_bytes)
        except WireError as error:
            self._refusals.record(error, item, queue=self._reading)
            return None
        return answer

    def _handle(self, consumer: Any, handle: Callable[[Any], Any], message: Any) -> Any:
        """Hand a message to Celery; a message in our lists that it fails on is refused.

        A KeyError is the message's, though kombu counts it among the errors of a connection.
        """
        try:
            return handle(message)
        except Exception as error:
            is_connections = isinstance(error, (*consumer.connection_errors, *consumer.channel_errors))
            if not self._is_ours() or (is_connections and not isinstance(error, KeyError)):
                raise
            said = f"the consumer failed on it: {type(error).__name__}"
            self.refuse(consumer, WireError(said, reason="unhandled", cause=error), message)

    def refuse(self, consumer: Any, error: WireError, message: Any) -> None:
        """Record a message and take it out of what is to be delivered again."""
        self._refusals.record_message(error, message)
        if not message.acknowledged:
            message.reject_log_error(logger, consumer.connection_errors)

    def _is_ours(self) -> bool:
        return self._is_alone or self._reading in self._queues


def guarding(gate: Gate) -> type[bootsteps.StartStopStep]:
    """Return the consumer's step that puts a gate before it."""

    class Guarding(bootsteps.StartStopStep):
        requires = (Tasks,)

        def start(self, consumer: Any) -> None:
            gate.guard(consumer)

    return Guarding


class SafeConsumer(Consumer):
    """The consumer of an app of our own: nothing in its log tells what is in a message."""

    refuse: Callable[[WireError, Any], None]
    """The gate's, which is there before anything is read."""

    def on_unknown_task(self, _body: Any, message: Any, _error: Exception) -> None:
        self.refuse(
            WireError(f"this worker has no task {_short(message.headers['task'])}", reason="unknown_task"), message
        )

    def on_unknown_message(self, _body: Any, message: Any) -> None:
        self.refuse(WireError("it names no task", reason="unknown_task"), message)

    def on_invalid_task(self, _body: Any, message: Any, error: Exception) -> None:
        self.refuse(WireError(f"Celery cannot read it: {type(error).__name__}", reason="unhandled"), message)

    def on_decode_error(self, message: Any, error: Exception) -> None:
        self.refuse(WireError(str(error), reason="undecodable"), message)


def _short(name: str) -> str:
    return repr(name)[:80]
