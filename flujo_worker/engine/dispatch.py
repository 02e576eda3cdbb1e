"""Publish to the broker after the commit, and answer the sweeper's queries about it.

Sent messages are marked `queued` in batches, off the hot path: a claim accepts a row that is still `ready`, so a lost mark costs at most
one duplicate message.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_JOIN, Envelope
from flujo_client.errors import ServiceUnreachable
from flujo_client.transport.broker import PRIORITY_STEPS, Broker
from flujo_client.transport.chords import group_of
from flujo_client.transport.dead_letters import Refused
from flujo_client.transport.loop_publisher import LoopPublisher, Taken
from flujo_client.transport.messages import SENT_HEADER
from flujo_client.transport.redis import RedisError
from flujo_worker import failpoints
from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.domain.values import FanOut
from flujo_worker.errors import DispatchError, StoreError
from flujo_worker.ports import BacklogStore, Publisher

if TYPE_CHECKING:
    from celery import Celery

    from flujo_client.transport.rabbit import RabbitBroker

logger = logging.getLogger(__name__)

EPOCH_KEY = "flujo:epoch"
MARK_EVERY_S = 0.1
_CLOCKS_APART_S = 3600.0
MOST_HELD: Final = 10_000
"""Messages that a process holds until they are due; the sweeper publishes any others."""


class BrokerPublisher:
    """What the publishers of all brokers have in common. Muted, they send nothing: others would refuse what this process signs."""

    def __init__(self, broker: Broker | RabbitBroker) -> None:
        self._broker, self.is_muted = broker, False

    def send(self, envelopes: Sequence[Envelope], *, first: bool = False) -> None:
        self._require_not_muted()
        with failing_as(f"{len(envelopes)} messages were not published"):
            self._broker.publish(envelopes, first=first)

    def depths(self, queues: Collection[str]) -> dict[str, int]:
        """Count the messages in queues; raises DispatchError."""
        with failing_as():
            return self._broker.depths(queues)

    def refused(self) -> Refused:
        """Count the messages that workers refused; raises DispatchError."""
        with failing_as():
            return self._broker.refused()

    def _require_not_muted(self) -> None:
        if self.is_muted:
            raise DispatchError("this worker sends nothing: others have another secret for its signing key")


class RedisPublisher(BrokerPublisher):
    """Publishes to Redis, and reads the queues there; the result backend of the app's join task counts the parts of chords.

    Args:
        settings: where the broker is.
        app: has our tasks.
        most: connections that threads may use at once; what runs on an event loop has one more.

    Attributes:
        counts_chords: whether there is a result backend that counts.
        redis: the client of this process's threads.
    """

    def __init__(self, settings: Settings, app: Celery, *, most: int = 2) -> None:
        self._broker: Broker
        super().__init__(Broker(settings, most=most))
        self._app, self.counts_chords, self.redis = app, settings.counts_chords, self._broker.redis
        self._publisher = LoopPublisher(self._broker)
        self._epoch_key = settings.broker_key_prefix + EPOCH_KEY

    async def push(self, envelopes: Sequence[Envelope], *, take: int = 0) -> Sequence[Taken]:
        self._require_not_muted()
        with failing_as(f"{len(envelopes)} messages were not published"):
            return await self._publisher.publish(envelopes, take=take)

    def execute(self, *command: Any) -> Awaitable[Any]:
        """Execute a command on an event loop; raises RedisError."""
        return self._publisher.execute(*command)

    def put_back(self, message: bytes, like: Envelope) -> None:
        """Put a message back at the end of the queue that it was taken from; raises DispatchError."""
        with failing_as("a message was not put back"):
            self._broker.redis.rpush(self._broker.key(like.queue, like.ticket.priority), message)

    def open_chord(self, run: str, fan_out: str, lanes: int) -> None:
        backend: Any = self._app.tasks[TASK_JOIN].backend  # its stubs know no chords
        with failing_as(f"the chord of {run}:{fan_out} was not opened"):
            backend.set_chord_size(group_of(run, fan_out), lanes)

    def epoch(self) -> str:
        drawn = f"{time.time_ns():x}"
        with failing_as("the broker does not answer"):
            while not self._broker.redis.set(self._epoch_key, drawn, nx=True):  # NX together with GET needs Redis 7
                kept: Any = self._broker.redis.get(self._epoch_key)
                if kept is not None:
                    return str(bytes(kept).decode())
        return drawn

    def heads(self, queues: Collection[str]) -> dict[str, float | None]:
        with failing_as("the broker does not answer"):
            return {queue: self._head(queue) for queue in queues}

    def close(self) -> None:
        self._publisher.close()
        self._broker.close()

    def _head(self, queue: str) -> float | None:
        """Return when the oldest of the next messages of all priorities was sent; 0.0 for one without a valid time."""
        pipe = self._broker.redis.pipeline(transaction=False)
        for step in PRIORITY_STEPS:
            pipe.lindex(self._broker.key(queue, step), -1)
        sent = [_sent_at(head) for head in pipe.execute() if head is not None]
        return min(sent, default=None)


@contextmanager
def failing_as(what: str = "") -> Iterator[None]:
    """Raise DispatchError for a broker that is away. Its message begins with `what`, unless the error has a sentence of its own."""
    try:
        yield
    except ServiceUnreachable as error:
        raise DispatchError(error.message, cause=error) from error
    except (RedisError, OSError) as error:
        raise DispatchError(f"{what}: {error}", cause=error) from error


class Sender(RecurringWork):
    """Publishes the next attempts, and marks them as sent, in batches, in a thread of its own."""

    def __init__(self, post: Publisher, backlog: BacklogStore) -> None:
        super().__init__(self._mark, "marks of messages", "flujo-marker", every_s=MARK_EVERY_S, ends_with_work=True)
        self._post, self._backlog = post, backlog
        self._sent: dict[str, float] = {}
        self._lock = threading.Lock()
        self._timed = TimedMessages(self._send_due)

    def start(self) -> Self:
        """Start to mark sent messages and to publish timed ones."""
        self._timed.start()
        return super().start()

    def stop(self) -> None:
        """Mark the remaining messages and stop."""
        self._timed.stop()
        super().stop()

    def send(self, envelopes: Sequence[Envelope], fan_out: FanOut | None = None, *, first: bool = False) -> None:
        """Publish messages of one run; those that the broker does not accept stay in their rows for the sweeper.

        The chord of a fan-out that begins with them is opened first: if all its parts returned before its size is known, there would be no signal.
        """
        if fan_out is not None and not self.open_chord(envelopes[0], fan_out):
            return
        before = time.monotonic()
        try:
            self._post.send(envelopes, first=first)
        except DispatchError as error:
            _leave_to_sweeper(envelopes[0], error)
        else:
            self._remember(envelopes, before)

    def open_chord(self, first: Envelope, fan_out: FanOut) -> bool:
        """Open the chord of a fan-out whose messages begin with this one, if chords are counted; return False if it is left to the sweeper."""
        try:
            if self._post.counts_chords:
                self._post.open_chord(first.ticket.run, fan_out.address, fan_out.lanes)
                failpoints.hit("chord_opened")
        except DispatchError as error:
            _leave_to_sweeper(first, error)
            return False
        return True

    def send_later(self, envelope: Envelope, delay_s: float) -> None:
        """Publish after a delay in seconds, if this process still runs then; else it is left to the sweeper."""
        self._timed.add(envelope, delay_s)

    def _send_due(self, envelopes: Sequence[Envelope]) -> None:
        """Publish messages whose rows are due, and mark them before the sweeper finds them."""
        for envelope in envelopes:
            self.send([envelope])
        self._mark()

    async def push(
        self, envelopes: Sequence[Envelope], *, take: int = 0, is_claimed: bool = False
    ) -> Sequence[Taken] | None:
        """Publish on an event loop; messages that the broker does not accept stay in their rows, and None is returned.

        Return at most `take` messages of the same queue, taken in the same round trip. Rows whose attempts are claimed already need no mark.
        """
        before = time.monotonic()
        try:
            taken = await self._post.push(envelopes, take=take)
        except DispatchError as error:
            logger.warning("%d messages left to the sweeper: %s", len(envelopes), error)
            return None
        if not is_claimed:
            self._remember(envelopes, before)
        return taken

    def put_back(self, message: bytes, like: Envelope) -> None:
        """Put back a message that was taken and is for others; where that fails it is left to the sweeper."""
        try:
            self._post.put_back(message, like)
        except DispatchError as error:
            logger.warning("%s", error)

    def _remember(self, envelopes: Sequence[Envelope], sent_at: float) -> None:
        """Queue messages to be marked with the next batch."""
        with self._lock:
            self._sent.update((envelope.key, sent_at) for envelope in envelopes)

    def _mark(self) -> None:
        with self._lock:
            sent, self._sent = self._sent, {}
        if not sent:
            return
        now = time.monotonic()
        try:
            self._backlog.mark_sent({key: now - before for key, before in sent.items()})
        except StoreError as error:
            logger.info("%d messages not marked as sent: %s", len(sent), error)


def _leave_to_sweeper(first: Envelope, error: DispatchError) -> None:
    logger.warning("%s and the rest of its batch are left to the sweeper: %s", first.key, error)


def _sent_at(raw: bytes) -> float:
    """Return the time at which a message was sent, by its headers; 0.0 if they have no valid time: a list may contain anything."""
    try:
        sent = float(orjson.loads(raw)["headers"][SENT_HEADER])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError):
        return 0.0
    return sent if 0.0 <= sent <= time.time() + _CLOCKS_APART_S else 0.0


class TimedMessages(RecurringWork):
    """Holds messages that are due in a moment, and publishes them from a separate thread when their time comes.

    No message depends on it: the rows are in Postgres with the same time, and the sweeper publishes the messages that a dead process held.
    """

    def __init__(self, publish: Callable[[Sequence[Envelope]], None]) -> None:
        super().__init__(self._publish_due, "messages that are due", "flujo-timer")
        self._publish, self._lock, self._order = publish, threading.Lock(), count()
        self._held: list[tuple[float, int, Envelope]] = []

    def add(self, envelope: Envelope, delay_s: float) -> None:
        """Publish a message after a delay in seconds."""
        with self._lock:
            if len(self._held) < MOST_HELD:
                heapq.heappush(self._held, (time.monotonic() + delay_s, next(self._order), envelope))
        self.wake.set()

    def pause_s(self) -> float:
        with self._lock:
            return self._held[0][0] - time.monotonic() if self._held else inf

    def _publish_due(self) -> None:
        due, now = list[Envelope](), time.monotonic()
        with self._lock:
            while self._held and self._held[0][0] <= now:
                due.append(heapq.heappop(self._held)[2])
        if due:
            self._publish(due)
