"""Publish to RabbitMQ, for clients and workers: a group of messages goes out at once, and returns when RabbitMQ has confirmed each of them.

Messages go to the default exchange, which routes them to the queue of their name. In Redis a queue begins with its first message; here each
connection declares the queues of Flujo's own workers. All others are declared by the workers that consume them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from bisect import bisect_right
from collections import Counter
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import kombu

from flujo_client.config.models import AMQP, FIRST
from flujo_client.contract.deployment import BrokerFacts
from flujo_client.errors import ConfigurationError, ServiceUnreachable
from flujo_client.redact import mask_url
from flujo_client.transport.broker import PRIORITY_STEPS
from flujo_client.transport.dead_letters import LIST_KEY, MAX_ENTRIES, Refused, read_letter, write_letter
from flujo_client.transport.entry import CONTENT_ENCODING, CONTENT_TYPE
from flujo_client.transport.messages import MessageWriter, TaskMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from flujo_client.config.manager import Settings
    from flujo_client.contract.envelope import Envelope
    from flujo_client.transport.dead_letters import DeadLetter, Reason

logger = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_S: Final = 10.0
"""Seconds within which RabbitMQ has to answer, or to confirm what was published."""
CONNECT_S: Final = 5.0
MOST_AT_ONCE: Final = 500
"""The maximum number of unconfirmed messages: their confirmations must fit into the buffers of a socket."""
_NO_QUEUE, _DIFFERS = 404, 406
"""Codes with which RabbitMQ closes a channel: there is no such queue; there is one with other arguments."""


class RabbitBroker:
    """Publishes messages to RabbitMQ, and keeps there what workers refused. Safe for several threads, and after a fork.

    Each method raises ServiceUnreachable, and ConfigurationError if RabbitMQ has one of our queues with other arguments.
    """

    def __init__(self, settings: Settings) -> None:
        self._url, self._writer, own = settings.broker(), MessageWriter(settings), settings.worker
        self._own = dict.fromkeys((own.attempts_queue, own.control_queue), own.queue_arguments)
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._link: _Link | None = None

    def reach(self) -> None:
        self._perform(_Link.ping)

    def publish(self, envelopes: Sequence[Envelope], *, first: bool = False) -> None:
        """Publish one message for each envelope, and wait until all are confirmed. With `first`, they go to the front of a classic queue."""
        self._publish([self._writer.write(envelope) for envelope in envelopes], first=first)

    def request_sweep(self, queue: str) -> None:
        self._publish([self._writer.request_sweep(queue)])

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """Count the messages that lie in each queue, 0 for one that does not exist."""
        return {queue: self._perform(partial(_Link.depth, queue=queue)) for queue in queues}

    def refused(self) -> Refused:
        """Return how many messages workers have refused, of those that are kept."""
        letters = self.dead_letters(MAX_ENTRIES)
        reasons = Counter(letter.reason for letter in letters)
        return Refused(dict(sorted(reasons.items())), len(letters), letters[0].at if letters else None, LIST_KEY)

    def dead_letters(self, most: int) -> list[DeadLetter]:
        """Return the messages that workers refused last, newest first, at most so many."""
        kept = self._perform(partial(_Link.bodies, queue=LIST_KEY))
        return [read_letter(json.loads(body)) for body in reversed(kept[-most:])]

    def add(self, reason: Reason, item: bytes, *, queue: str, detail: str = "") -> None:
        """Keep the beginning of a refused message in a queue; the oldest one makes room."""
        self._perform(partial(_Link.declare, queue=LIST_KEY, arguments={"x-max-length": MAX_ENTRIES}))
        self._publish([TaskMessage({}, write_letter(reason, item, queue=queue, detail=detail), LIST_KEY, None)])

    def describe(self) -> BrokerFacts:
        """Return the version of RabbitMQ."""
        return BrokerFacts(version=self._perform(lambda link: link.version), is_kept=True)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _publish(self, messages: Sequence[TaskMessage], *, first: bool = False) -> None:
        for begin in range(0, len(messages), MOST_AT_ONCE):
            some = messages[begin : begin + MOST_AT_ONCE]
            for queue in sorted(self._perform(partial(_Link.publish, messages=some, first=first))):
                logger.warning("RabbitMQ has no queue %r: its messages are sent again once a worker consumes it", queue)

    def _perform(self, act: Callable[[_Link], T]) -> T:
        """Do something with the connection; once more if the one that was open has been lost meanwhile."""
        with self._lock:
            if self._pid != os.getpid():  # what a parent process has open is the parent's
                self._link, self._pid = None, os.getpid()
            if self._link is not None:
                try:
                    return act(self._link)
                except _errors():
                    self._drop()
            try:
                self._link = _Link(self._url)
                for queue, arguments in self._own.items():
                    self._link.declare(queue, arguments)
                return act(self._link)
            except _errors() as error:
                self._drop()
                raise _named(error, mask_url(self._url)) from error

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


@cache
def _errors() -> tuple[type[Exception], ...]:
    """Return the errors of py-amqp, which is imported only where the broker is a RabbitMQ."""
    lazy = kombu.Connection(AMQP[0])
    return (*lazy.connection_errors, *lazy.channel_errors, OSError)


def _named(error: Exception, url: str) -> Exception:
    if getattr(error, "code", None) == _DIFFERS:
        way_out = "set worker.queue_type to its type; or stop the workers, and delete it: what was in it is sent again"
        return ConfigurationError(f"{url} has a queue with other arguments: {error}", suggestion=way_out, cause=error)
    what = f"the broker does not answer at {url}: {error or type(error).__name__}"
    return ServiceUnreachable(what, suggestion="check FLUJO_BROKER_URL", cause=error)


class _Link:
    """A connection, with a channel whose messages RabbitMQ confirms. For one thread at a time; a lost one is of no further use."""

    def __init__(self, url: str) -> None:
        self._connection = cast("Any", kombu.Connection(url, connect_timeout=CONNECT_S, heartbeat=0))
        server = self._connection.connect()
        server.sock.settimeout(ANSWER_S)
        self.version = str(server.server_properties.get("version"))
        self._channel = self._connection.channel()
        self.ping()
        self._sent, self._unconfirmed, self._returned = 0, set[int](), set[str]()
        events = self._channel.events
        events["basic_ack"].add(self._confirmed)
        events["basic_nack"].add(self._rejected)
        events["basic_return"].add(lambda _error, _exchange, queue, _message: self._returned.add(queue))

    def ping(self) -> None:
        """Wait for an answer: that to a second request for confirmations is the same."""
        self._channel.confirm_select()

    def publish(self, messages: Sequence[TaskMessage], *, first: bool = False) -> set[str]:
        """Publish messages, and wait until each is confirmed; return the queues among theirs that do not exist."""
        self._returned = set()
        for message in messages:
            self._sent += 1
            self._unconfirmed.add(self._sent)
            self._channel.basic_publish(self._written(message, first=first), "", message.queue, mandatory=True)
        while self._unconfirmed:
            self._connection.drain_events(timeout=ANSWER_S)
        return self._returned

    def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        with self._aside() as channel:
            channel.queue_declare(queue, durable=True, auto_delete=False, arguments=dict(arguments))

    def depth(self, queue: str) -> int:
        """Return how many messages lie in a queue and have not been delivered; 0 if there is no such queue."""
        counts: list[int] = []
        with self._aside() as channel:
            counts.append(channel.queue_declare(queue, passive=True).message_count)
        return sum(counts)

    def bodies(self, queue: str) -> list[bytes]:
        """Return what lies in a queue, and leave it there; nothing if there is no such queue."""
        found: list[bytes] = []
        with self._aside() as channel:
            while (message := channel.basic_get(queue)) is not None:
                found.append(message.body)
        return found

    def close(self) -> None:
        """Close the connection, without waiting for a server that does not answer."""
        self._connection.collect(socket_timeout=1.0)

    @contextmanager
    def _aside(self) -> Iterator[Any]:
        """Use another channel: RabbitMQ closes the one that asks for a missing queue, and requeues what was not acknowledged on it."""
        channel = self._connection.channel()
        try:
            yield channel
        except self._connection.channel_errors as error:
            if getattr(error, "code", None) != _NO_QUEUE:
                raise
        finally:
            channel.close()

    def _written(self, message: TaskMessage, *, first: bool) -> Any:
        """Write a message with the headers that say something: py-amqp takes longer for headers than for all else, and workers add the rest."""
        headers = {name: value for name, value in message.headers.items() if value and isinstance(value, str)}
        return self._channel.prepare_message(
            message.body,
            priority=FIRST if first else FIRST - bisect_right(PRIORITY_STEPS, message.priority or 0),
            content_type=CONTENT_TYPE,
            content_encoding=CONTENT_ENCODING,
            headers=headers,
            properties={"correlation_id": message.headers.get("id"), "delivery_mode": 2},
        )

    def _confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's
        self._unconfirmed -= {each for each in self._unconfirmed if each <= tag} if multiple else {tag}

    def _rejected(self, tag: int, _multiple: bool) -> None:  # noqa: FBT001 - likewise
        raise OSError(f"message {tag} of this connection was rejected")
