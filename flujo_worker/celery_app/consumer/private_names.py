"""All private names of Celery, kombu and redis-py that we use, and all names that we replace although no documentation allows it.

We read their code from the oldest to the newest of the versions `READ_IN`; a test looks for every name in the installed versions. Before you allow
a new version, read its changes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from celery import current_app
from celery.app import trace
from celery.concurrency.thread import TaskPool
from celery.worker.consumer import consumer
from kombu.asynchronous import Hub
from kombu.transport import redis as stock

if TYPE_CHECKING:
    from celery import Celery

READ_IN: Final = {"celery": ("5.3.6", "5.7.0"), "kombu": ("5.3.4", "5.7.0"), "redis": ("4.6.0", "8.1.0")}
NAMES: Final[dict[str, Sequence[str]]] = {
    "kombu.transport.redis:Channel": [
        "_brpop_read",
        "_brpop_start",
        "_closing",
        "_in_poll",
        "_q_for_pri",
        "_queue_cycle",
        "active_queues",
        "global_keyprefix",
        "handlers",
        "subclient",
    ],
    "kombu.transport.virtual.base:Transport": ("_callbacks", "_deliver", "channels", "create_channel"),
    "kombu.transport.virtual.base:QoS": ("can_consume", "can_consume_max_estimate"),
    "kombu.transport.virtual.base:Message": ("_raw",),
    "kombu.pidbox:Node": ("handlers",),
    "redis.connection:AbstractConnection": ("_sock",),
    "redis.client:Redis": ("parse_response",),
    "celery.backends.redis:RedisBackend": [
        "encode_result",
        "expires",
        "get_key_for_group",
        "on_chord_part_return",
    ],
    "celery.worker.consumer:Consumer": ("create_task_handler", "on_decode_error", "on_invalid_task"),
    "celery.events.dispatcher:EventDispatcher": ("buffer_group",),
    "celery.local:Proxy": ("_get_current_object",),
    "celery.worker.control": ("Panel",),
    "celery.worker.state": ("should_stop", "task_accepted", "task_ready", "task_reserved"),
    "celery.worker.strategy": ("default",),
    "celery.app.trace": ("build_tracer",),
    "celery.worker.consumer.consumer": ("build_tracer",),
    "celery.concurrency.thread:ApplyResult": ("f",),
}
"""By the class or module that has them."""
NEWER: Final[dict[str, dict[str, str]]] = {
    "kombu.transport.redis:Channel": {"_brpop_sent_at": "5.7", "_flush_brpop_reauth": "5.7", "brpop_timeout": "5.6"},
    "kombu.asynchronous.hub:Hub": {"_create_waker": "5.7"},
    "celery.events.dispatcher:EventDispatcher": {"_prepare_event": "5.7"},
    "celery.backends.redis:RedisBackend": {"chord_expires": "5.7"},
}
"""The names that older versions lack, with the version that brought each. We look for each name before we use it."""
CLOSES_IDLE: Final = hasattr(Hub, "_create_waker")
"""Before kombu 5.7, a hub stops reading a consumer's answers once other connections were closed."""


class OpenChannel(stock.Channel):
    """kombu's channel, with names for what its loop over BRPOP consists of."""

    connection: Any
    # Missing in kombu's type stubs.
    QoS: Any
    connection_errors: tuple[type[Exception], ...]
    _closing: bool
    _queue_cycle: Any
    _q_for_pri: Callable[[str, int], str]

    def ask(self, timeout: float) -> None:
        """Ask for messages, and wait that many seconds; kombu calls it when nothing is asked for and `QoS.can_consume` allows it."""
        super()._brpop_start(timeout)  # type: ignore[misc]

    def read_answer(self, **options: Any) -> bool:
        """Read an answer and deliver what is in it; kombu calls it when the connection has something to read."""
        return bool(super()._brpop_read(**options))  # type: ignore[misc]

    def _brpop_start(self, timeout: float | None = None) -> None:
        # Before kombu 5.6 the default was 1, and None meant for ever.
        self.ask(getattr(self, "brpop_timeout", 1) if timeout is None else timeout)

    def _brpop_read(self, **options: Any) -> bool:
        return self.read_answer(**options)

    @property
    def is_open(self) -> bool:
        """Return whether a request can be sent."""
        return not self._closing and self.client.connection._sock is not None  # noqa: SLF001

    def begin_poll(self, request: Any) -> None:
        """Send a request whose answer `read_answer` is called for."""
        self._in_poll, self._brpop_sent_at = self.client.connection, time.monotonic()
        self._in_poll.send_packed_command(request)

    def end_poll(self) -> None:
        """Note that the answer was read."""
        self._in_poll = None
        if hasattr(self, "_flush_brpop_reauth"):  # what redis-py wanted to do with the connection while it was busy
            self._flush_brpop_reauth()

    def turns(self) -> Sequence[str]:
        """Return the queues in the order of their turns."""
        queues: Sequence[str] = self._queue_cycle.consume(len(self.active_queues))
        return queues

    def end_turn(self, queue: str) -> None:
        """Put a queue behind the others."""
        self._queue_cycle.rotate(queue)

    def list_of(self, queue: str, step: int) -> str:
        """Return the list of a queue and a priority, without the prefix of keys."""
        return self._q_for_pri(queue, step)

    def has_consumer(self, queue: str) -> bool:
        """Return whether one of kombu's consumers takes the messages of a queue."""
        return queue in self.connection._callbacks  # noqa: SLF001

    def deliver(self, message: Any, queue: str) -> None:
        """Pass a message to the queue's consumer."""
        self.connection._deliver(message, queue)  # noqa: SLF001


def keep_events(consumer: Any) -> None:
    """Let a worker that runs tasks in threads lose no event. Before Celery 5.7, those that come while others are published are dropped."""
    dispatcher = consumer.event_dispatcher
    if dispatcher and not hasattr(dispatcher, "_prepare_event") and isinstance(consumer.pool, TaskPool):
        dispatcher.buffer_group = frozenset()


def is_tracer_replaced() -> bool:
    """Return whether an instrumentation, such as Sentry's, has put something else in the place of Celery's `build_tracer`."""
    build: Any = trace.build_tracer
    return type(build) is not FunctionType or build.__code__.co_filename != trace.__file__


def use_replaced_tracer() -> None:
    """Let Celery's consumer use it too: instrumentations replace it in the belief that nothing has imported the consumer yet, but we have."""
    consumer.build_tracer = trace.build_tracer  # type: ignore[attr-defined]  # its stubs lack it


def raw_of(message: Any) -> dict[str, Any]:
    """Return a message as it lay in its list; empty if kombu has not kept it."""
    return getattr(message, "_raw", None) or {}


def let_calls_wake(hub: Any) -> None:
    """Let a call from another thread wake a hub at once, as kombu does from 5.7 on; to be called again for a hub that was reset.

    Before, a call waits for the hub's next event, which may take 10 seconds while a worker has as many messages as it may: an acknowledgement
    from a thread is such a call.
    """
    if hasattr(hub, "_create_waker"):
        return
    if not isinstance(hub.call_soon, _WakingCalls):
        hub.call_soon = _WakingCalls(hub.call_soon)
    hub.add_reader(hub.call_soon.heard, hub.call_soon.heard.recv, 4096)


class _WakingCalls:
    """A hub's `call_soon` that gives the hub something to read."""

    def __init__(self, call_soon: Callable[..., Any]) -> None:
        self._call_soon = call_soon
        self._ring, self.heard = socket.socketpair()
        self._ring.settimeout(0)

    def __call__(self, *args: Any) -> Any:
        called = self._call_soon(*args)
        with suppress(BlockingIOError):  # there is enough to read
            self._ring.send(b"!")
        return called


def counting_backend(app: Celery) -> Any:
    """Return an app's result backend, for tasks of another app. Before Celery 5.6 it looks for the group of a chord with the current app."""
    backend: Any = app.backend
    count = backend.on_chord_part_return

    def count_as_current(*args: Any, **options: Any) -> Any:
        theirs = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001
        app.set_current()
        try:
            return count(*args, **options)
        finally:
            theirs.set_current()

    backend.on_chord_part_return = count_as_current
    return backend
