"""All private names of Celery, kombu and redis-py that we use, and all names that we replace although no documentation allows it.

We read their code in the versions `READ_IN`; a test looks for every name of `NAMES` in the installed versions. Before you allow a new version, read
its changes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kombu.transport import redis as stock

if TYPE_CHECKING:
    from celery import Celery

READ_IN: Final = {"celery": "5.7.0", "kombu": "5.7.0", "redis": "8.1.0"}
NAMES: Final[dict[str, Sequence[str]]] = {
    "kombu.transport.redis:Channel": [
        "_brpop_read",
        "_brpop_sent_at",
        "_brpop_start",
        "_closing",
        "_flush_brpop_reauth",
        "_in_poll",
        "_q_for_pri",
        "_queue_cycle",
        "active_queues",
        "brpop_timeout",
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
        "_chord_part_return_script",
        "_chord_zset",
        "chord_expires",
        "encode_result",
        "get_key_for_group",
        "on_chord_part_return",
    ],
    "celery.worker.consumer:Consumer": ("create_task_handler", "on_decode_error", "on_invalid_task"),
    "celery.worker.control": ("Panel",),
    "celery.worker.state": ("should_stop", "task_accepted", "task_ready", "task_reserved"),
    "celery.worker.strategy": ("default",),
    "celery.app.trace": ("build_tracer",),
    "celery.concurrency.thread:ApplyResult": ("f",),
}
"""By the class or module that has them."""

_NO_SIGNAL: Final = 0
"""The expiry of the signal's key for a part that must not signal: Redis rejects it, so nothing is claimed."""


class OpenChannel(stock.Channel):
    """kombu's channel, with names for what its loop over BRPOP consists of."""

    connection: Any
    # Missing in kombu's type stubs.
    QoS: Any
    connection_errors: tuple[type[Exception], ...]
    _closing: bool
    _queue_cycle: Any
    _q_for_pri: Callable[[str, int], str]
    _flush_brpop_reauth: Callable[[], None]

    def ask(self, timeout: float | None) -> None:
        """Ask for messages; kombu calls it when nothing is asked for and `QoS.can_consume` allows it."""
        super()._brpop_start(timeout)  # type: ignore[misc]

    def read_answer(self, **options: Any) -> bool:
        """Read an answer and deliver what is in it; kombu calls it when the connection has something to read."""
        return bool(super()._brpop_read(**options))  # type: ignore[misc]

    def _brpop_start(self, timeout: float | None = None) -> None:
        self.ask(timeout)

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


def raw_of(message: Any) -> dict[str, Any]:
    """Return a message as it lay in its list; empty if kombu has not kept it."""
    return getattr(message, "_raw", None) or {}


def _count_part(backend: Any, part: ChordPart, client: Any) -> None:
    """Count a part of a chord as `RedisBackend.on_chord_part_return` begins to, without asking whether Redis knows the script."""
    names = (".j", ".t", ".s", ".d", "", ".c")
    result = backend.encode([1, part.id, "SUCCESS", backend.encode_result(None, "SUCCESS")])
    expires = backend.chord_expires or 0, backend._chord_result_expires  # noqa: SLF001
    is_ordered = int(bool(backend._chord_zset))  # noqa: SLF001
    arguments = [part.id, result, is_ordered, part.group_index, *expires, _NO_SIGNAL, uuid.uuid4().hex]
    keys = [backend.get_key_for_group(part.group, name) for name in names]
    client.evalsha(backend._chord_part_return_script.sha, len(keys), *keys, *arguments)  # noqa: SLF001


class ChordPart(NamedTuple):
    """A task that has ended, as its chord counts it: the ids of the task and of its group, its place there, and the chord's body as a signature."""

    id: str
    group: str
    group_index: int
    chord: Any


def count_parts(app: Celery, parts: Sequence[ChordPart]) -> None:
    """Count parts; to be called from a thread that may wait for Redis.

    Celery's tracer calls `on_chord_part_return` for each task, one round trip each. Here all parts except the last of each chord need one round
    trip; Celery counts the last one, and signals when the count is complete.
    A part that completes its chord after all is also counted by Celery.
    """
    backend: Any = app.backend
    last = {part.group: part for part in parts}
    rest = [part for part in parts if last[part.group] is not part]
    counted: list[Any] = []
    if rest:
        with backend.client.pipeline(transaction=False) as pipe:
            for part in rest:
                _count_part(backend, part, pipe)
            counted = pipe.execute(raise_on_error=False)
    refused = [part for part, answer in zip(rest, counted, strict=True) if isinstance(answer, Exception)]
    for part in (*refused, *last.values()):
        backend.on_chord_part_return(SimpleNamespace(**part._asdict()), "SUCCESS", None)
