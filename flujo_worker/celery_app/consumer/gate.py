"""Screen items between a queue's list and Celery's consumer: none of them can end a worker, under any consumer of the app.

Stock Celery 5.7 exits on an item that is not a message, on a body of type `application/data`, and on one that decodes to a number; so does
the next worker that gets the message (celery/celery#4308). Items are screened here before kombu reads them, and messages on which Celery's
handler fails are rejected. Messages in other lists, for other tasks, follow the app's rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.worker.consumer import Consumer
from celery.worker.consumer.tasks import Tasks

from flujo_client.config.manager import Settings
from flujo_client.transport.wire import MAX_BYTES
from flujo_worker.celery_app.consumer.channel import BulkChannel
from flujo_worker.celery_app.consumer.pool import AttemptPool
from flujo_worker.celery_app.consumer.private_names import keep_events, let_calls_wake, use_replaced_tracer
from flujo_worker.celery_app.consumer.refusals import Refusals
from flujo_worker.celery_app.consumer.remote import RemoteControl, note_once
from flujo_worker.celery_app.consumer.screen import screen
from flujo_worker.errors import WireError

if TYPE_CHECKING:
    from celery import Celery

    from flujo_worker.celery_app.consumer.deliveries import Deliveries

logger = logging.getLogger(__name__)

_PIDBOX = ".pidbox"
"""In the names of the channels that Celery's remote control broadcasts on."""


class ItemGate:
    """Screens the items that one worker process reads. If the app has only our tasks, whose names are `own`, every list is ours."""

    def __init__(
        self, app: Celery, settings: Settings, refusals: Refusals, own: Container[str], *, is_alone: bool
    ) -> None:
        self._app, self._refusals, self._own, self._is_alone = app, refusals, own, is_alone
        self._queues = {settings.worker.attempts_queue, settings.worker.control_queue}
        self._max_bytes = settings.limits.message_max_bytes or MAX_BYTES
        self._remote, self._is_amqp = RemoteControl(settings, own), settings.uses_rabbitmq
        self._acknowledge_s = settings.worker.acknowledge_s
        self._reading = ""
        self._pool: AttemptPool | None = None
        self._deliveries: Deliveries | None = None
        self._is_ready = not self._is_amqp

    def guard(self, consumer: Any) -> None:
        """Guard a consumer that is about to read; once for each connection that it makes."""
        self._remote.install(consumer)
        if isinstance(consumer.pool, AttemptPool):
            self._pool = consumer.pool
            self._pool.screen = lambda item, queue: self._message_of(item, is_ours=self._is_ours(queue))
        if not self._is_amqp:
            self._guard_channels(consumer.connection.transport)
        else:
            self._guard_deliveries(consumer)
        consumer.refuse = partial(self.refuse, consumer)
        make = type(consumer).create_task_handler
        consumer.create_task_handler = lambda *args, **kwargs: partial(
            self._handle, consumer, make(consumer, *args, **kwargs)
        )

    def _guard_deliveries(self, consumer: Any) -> None:
        from flujo_worker.celery_app.consumer.deliveries import Deliveries

        if self._deliveries is None:
            self._deliveries = Deliveries(self._acknowledge_s, None if self._pool is None else self._pool.capacity)
        if self._pool is not None:
            self._pool.receipt = self._deliveries.receipt
        self._deliveries.begin(consumer)
        consumer.call_soon(setattr, self, "_is_ready", True)  # noqa: FBT003 - setattr's

    def _guard_channels(self, transport: Any) -> None:
        """Guard the channels of kombu's transport for Redis. In AMQP the server checks messages."""
        for channel in transport.channels:
            self._watch(channel)
        transport.create_channel = partial(self._create_watched, transport.create_channel)

    def _create_watched(self, create: Callable[[Any], Any], connection: Any) -> Any:
        """Create a watched channel: remote control creates a new one after an error."""
        channel = create(connection)
        self._watch(channel)
        return channel

    def _watch(self, channel: Any) -> None:
        if _is_watched(channel.client):
            return
        channel.client.parse_response = partial(self._parse, channel.client.parse_response, channel.sep)
        if isinstance(channel, BulkChannel):
            channel.read = self._read_item
            channel.take = self._pool.take_unread if self._pool is not None else channel.take
        channel.handlers["LISTEN"] = partial(self._receive_broadcasts, channel, channel.handlers["LISTEN"])

    def _receive_broadcasts(self, channel: Any, receive: Callable[[], Any]) -> Any:
        """Let kombu receive broadcasts, whose connection exists only from the first one on."""
        client = channel.subclient
        if not _is_watched(client):
            client.parse_response = partial(self._parse_broadcast, client.parse_response)
        return receive()

    def _parse(self, read: Callable[..., Any], separator: str, connection: Any, command: str, **options: Any) -> Any:
        """Parse a response of Redis. Return None for an item that does not pass, as if the list were empty."""
        answer = read(connection, command, **options)
        if command != "BRPOP" or not answer:
            return answer
        key, item = answer
        return answer if self._read_item(item, key.decode().rsplit(separator, 1)[0]) is not None else None

    def _read_item(self, item: bytes, queue: str) -> dict[str, Any] | None:
        """Read an item of a queue, or refuse it."""
        self._reading = queue
        return self._screen_or_record(item, is_ours=self._is_ours(queue))

    def _parse_broadcast(self, read: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Parse a broadcast. Return None for one that does not pass. Remote control is never compressed."""
        answer = read(*args, **options)
        if not answer or not isinstance(answer[-1], bytes):
            return answer
        self._reading = bytes(answer[-2]).decode(errors="replace")
        is_ours = self._is_alone or _PIDBOX in self._reading
        return answer if self._screen_or_record(answer[-1], is_ours=is_ours) is not None else None

    def _screen_or_record(self, item: bytes, *, is_ours: bool) -> dict[str, Any] | None:
        """Return the message of an item; None, and record a refusal, if it does not pass."""
        try:
            return self._message_of(item, is_ours=is_ours)
        except WireError as error:
            self._refusals.record(error, item, queue=self._reading)
            return None

    def _message_of(self, item: bytes, *, is_ours: bool) -> dict[str, Any]:
        others = () if self._is_alone else self._app.tasks
        return screen(item, is_ours=is_ours, own=self._own, others=others, max_bytes=self._max_bytes)

    def _handle(self, consumer: Any, handle: Callable[[Any], Any], message: Any) -> Any:
        """Pass a message to Celery; one in our lists that it does not know, or fails on, is refused.

        A KeyError is the message's, though kombu counts it among the errors of a connection.
        """
        if not self._is_ready:
            # RabbitMQ delivers as soon as a consumer begins, before Celery's signal of a ready worker has created the host.
            return consumer.call_soon(self._handle, consumer, handle, message)
        task = message.headers.get("task")
        if self._is_amqp:
            self._reading = str(message.delivery_info.get("routing_key"))
        if self._is_ours(self._reading) and not (isinstance(task, str) and task in self._app.tasks):
            detail = f"this worker has no task {repr(task)[:80]}"
            return self.refuse(consumer, WireError(detail, reason="unknown_task"), message)
        if self._deliveries is not None and task in self._own:
            self._deliveries.watch(message)
        try:
            return handle(message)
        except Exception as error:
            is_connections = isinstance(error, (*consumer.connection_errors, *consumer.channel_errors))
            if not self._is_ours(self._reading) or (is_connections and not isinstance(error, KeyError)):
                raise
            detail = f"the consumer failed on it: {type(error).__name__}"
            self.refuse(consumer, WireError(detail, reason="unhandled", cause=error), message)

    def refuse(self, consumer: Any, error: WireError, message: Any) -> None:
        """Record a message and reject it, so that it is not delivered again."""
        self._refusals.record_message(error, message)
        if not message.acknowledged:
            message.reject_log_error(logger, consumer.connection_errors)

    def _is_ours(self, queue: str) -> bool:
        return self._is_alone or queue in self._queues


def _is_watched(client: Any) -> bool:
    return "parse_response" in vars(client)


def guarding(gate: Callable[[], ItemGate]) -> type[bootsteps.StartStopStep]:
    """Return the consumer's step that puts a gate before it; `gate` returns it whenever a connection begins."""

    class Guarding(bootsteps.StartStopStep):
        requires = (Tasks,)

        def __init__(self, consumer: Any, **options: Any) -> None:
            use_replaced_tracer()
            super().__init__(consumer, **options)

        def start(self, consumer: Any) -> None:
            gate().guard(consumer)
            keep_events(consumer)

        def register_with_event_loop(self, _consumer: Any, hub: Any) -> None:
            let_calls_wake(hub)

    return Guarding


class SafeConsumer(Consumer):
    """The consumer of our own app: its log never shows the contents of a message."""

    refuse: Callable[[WireError, Any], None]
    """The gate's, which is there before anything is read."""

    def on_invalid_task(self, _body: Any, message: Any, error: Exception) -> None:
        self.refuse(WireError(f"Celery cannot read it: {type(error).__name__}", reason="unhandled"), message)

    def on_decode_error(self, message: Any, error: Exception) -> None:
        if str((message.delivery_info or {}).get("exchange")).endswith(_PIDBOX):
            # A greeting that workers of other apps send to all workers of the broker: nothing is lost.
            note_once(f"ignored a remote control command that this worker does not accept: {error!s:.200}")
            return
        self.refuse(WireError(str(error), reason="undecodable"), message)
