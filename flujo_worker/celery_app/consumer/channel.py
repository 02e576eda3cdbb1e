"""Take messages from Redis: as many as there are free slots, in one round trip.

kombu takes one message for each BRPOP, and continues while the worker is full. Here BLMPOP takes several at once, and none while no slot is
free. Servers without BLMPOP (Redis 6.2) get BRPOP first and RPOP for the rest. Only channels that consume with acknowledgements are
limited, as in AMQP: remote control and replies use kombu's way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import cache, lru_cache
from queue import Empty
from typing import Any, Final, Protocol

import kombu
from kombu import pools
from kombu.connection import ConnectionPool
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.json import loads

from flujo_client.transport.redis import ResponseError, is_not_allowed
from flujo_worker.celery_app.consumer.private_names import CLOSES_IDLE, OpenChannel, let_calls_wake

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 32
"""The maximum number of messages that a process takes at once: more would wait here while other processes are idle."""
IDLE_S = 5
"""The interval in seconds at which idle connections are closed."""
_AGAIN: Final = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}
"""Seconds until a connection that fails is tried again: kombu waits for 2, 4, 6 and so on, also where the broker was back long before."""


class FreeSlots(Protocol):
    """Counts the free slots of a process."""

    @property
    def free(self) -> int:
        """Return how many more messages the process can take; only taking a message may lower it."""

    @property
    def running(self) -> int:
        """Return how many messages are being carried out."""


class Capacity:
    """The number of further messages that a process can take, and the wake-up of the hub that waits for a free slot."""

    def __init__(self, slots: FreeSlots) -> None:
        self._slots = slots
        self._hub: Any = None
        self._is_awaited = False
        self.queues: Collection[str] = frozenset()
        """The queues that messages are taken from now."""
        self.changed: Callable[[], object] = lambda: None
        """Called when the number may have changed."""

    @property
    def free(self) -> int:
        return self._slots.free

    @property
    def slots(self) -> int:
        """Return the number of slots, busy ones included."""
        return self._slots.free + self._slots.running

    def serve(self, hub: Any) -> None:
        """Wake this hub from now on."""
        self._hub = hub
        let_calls_wake(hub)

    def has_room(self) -> bool:
        """Return whether a slot is free; if none is, the next `wake` wakes the hub. Called by the hub's thread."""
        if self._slots.free > 0:
            return True
        self._is_awaited = True
        return self._slots.free > 0  # a slot that became free before the line above woke no one

    def wake(self) -> None:
        """Notify the hub that a slot is free again, if it waits for one. Safe to call from any thread, any number of times."""
        self.changed()
        if self._is_awaited and self._hub is not None:
            self._is_awaited = False
            self._hub.call_soon(lambda: None)  # once awake, the hub asks for messages before it waits again


def connection_for(capacity: Capacity | None = None) -> type[kombu.Connection]:
    """Return a class for `app.amqp.Connection` that closes idle connections to Redis. With a capacity, consumers take messages by free slots.

    kombu still chooses the transport by the URL, also when it switches to the next of several URLs.
    """
    kinds: tuple[type, type] = (SparingChannel, SparingTransport) if capacity is None else (BulkChannel, BulkTransport)

    @cache
    def derived(base: Any) -> type[SparingTransport]:
        channel = type("Channel", (kinds[0], base.Channel), {"capacity": capacity})
        return type("Transport", (kinds[1], base), {"Channel": channel, "capacity": capacity})

    class LimitedConnection(kombu.Connection):
        def get_transport_cls(self) -> Any:
            base: Any = super().get_transport_cls()
            return derived(base) if issubclass(base, stock.Transport) else base

        def ensure_connection(self, *args: Any, **options: Any) -> Any:
            return super().ensure_connection(*args, **_AGAIN | options)

    return LimitedConnection


def publish_sparingly(app: Any) -> None:
    """Let an app publish on connections of its class. Since kombu 5.7 pools make others, each with a connection to Redis that idles."""
    connection = app.connection_for_write()
    pools.connections[connection] = _Pool(connection, limit=app.conf.broker_pool_limit)


class _Pool(ConnectionPool):
    """Connections with the channels of the first one."""

    def new(self) -> Any:
        made: Any = super().new()
        made.get_transport_cls = self.connection.get_transport_cls
        return made


class SparingChannel(OpenChannel):
    """A channel that has no connection to Redis until it needs one: kombu makes one to ask for an answer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that no command uses now."""
        for pool in (self.pool, self.async_pool) if CLOSES_IDLE else ():
            pool.disconnect(inuse_connections=False)


class SparingTransport(stock.Transport):
    """Closes the connections to Redis that its channels do not use."""

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        loop.call_soon(self._close_idle)  # what only the start needed
        loop.call_repeatedly(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        channels: Any = self.channels
        for channel in channels or ():
            channel.close_idle()


class _Limited(virtual.QoS):
    channel: BulkChannel

    def can_consume(self) -> bool:
        return super().can_consume() and self.channel.has_room()


class _LimitedWithAcks(_Limited, stock.QoS):
    """The same with kombu's acknowledgements in Redis."""


class BulkChannel(SparingChannel):
    """A channel that takes as many messages as there are free slots. Only the hub's thread uses it."""

    capacity: Capacity
    connection: BulkTransport

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.QoS = _LimitedWithAcks if self.ack_emulation else _Limited
        self.read: Callable[[bytes, str], Any] = lambda item, _: loads(item.decode())
        """Reads the message of a queue's item; None if it is not to be delivered."""
        self.take: Callable[[Any, str], bool] = lambda *_: False
        """Takes a message of a queue; False if it has to pass through kombu's and Celery's consumers."""
        self._bulk_request = lru_cache(self._write_bulk_request)
        self._is_limited = False
        self._asked: str | None = None
        self._key = ""

    def has_room(self) -> bool:
        return not self._is_limited or self.capacity.has_room()

    def basic_consume(self, queue: str, no_ack: bool | None, *args: Any, **options: Any) -> Any:  # noqa: FBT001 - kombu's
        self._is_limited = self._is_limited or not no_ack
        tag = super().basic_consume(queue, no_ack, *args, **options)
        self._announce_queues()
        return tag

    def basic_cancel(self, consumer_tag: Any) -> Any:
        cancelled = super().basic_cancel(consumer_tag)
        self._announce_queues()
        return cancelled

    def close(self) -> None:
        if self._is_limited:
            self.capacity.queues = frozenset()
        super().close()

    def _announce_queues(self) -> None:
        if self._is_limited:
            self.capacity.queues = frozenset(self.active_queues)

    def ask(self, timeout: float) -> None:
        self._asked = "BRPOP" if self._is_limited else None
        if not self._is_limited or not self.connection.knows_blmpop:
            super().ask(timeout)
        elif queues := self.turns():
            self._asked = "BLMPOP"
            self.begin_poll(self._bulk_request(tuple(queues), timeout, self._room(MOST_AT_ONCE)))

    def _write_bulk_request(self, queues: Sequence[str], seconds: float, count: int) -> Any:
        keys = [self._prefixed(self.list_of(queue, step)) for step in self.priority_steps for queue in queues]
        return self.client.connection.pack_command("BLMPOP", seconds, len(keys), *keys, "RIGHT", "COUNT", count)

    def read_answer(self, **options: Any) -> bool:
        asked = self._asked
        if asked is None:
            return super().read_answer(**options)
        key, items = self._answer(asked)
        queue = key.rsplit(self.sep, 1)[0]
        self.end_turn(queue)
        self._deliver_all(key, queue, items)
        if asked == "BRPOP":
            self._ask_for_more(key, queue)
        return True

    def _answer(self, asked: str) -> tuple[str, Sequence[bytes]]:
        """Return the list that something came from, and its items; raise Empty if nothing came."""
        try:
            answer = self.client.connection.read_response()
        except ResponseError as error:
            if asked != "BLMPOP" or not is_not_allowed(error):
                raise
            self.connection.knows_blmpop = False
            answer = None
        finally:
            self.end_poll()
        if not answer:
            raise Empty
        if asked == "RPOP":
            return self._key, answer
        self._key = answer[0].decode().removeprefix(self.global_keyprefix)
        return self._key, answer[1] if asked == "BLMPOP" else answer[1:]

    def _ask_for_more(self, key: str, queue: str) -> None:
        """Ask for as many further messages as there are free slots; the answer is read like that of BRPOP."""
        if self.is_open and queue in self.active_queues and self.qos.can_consume():
            room = self._room(MOST_AT_ONCE - 1)
            self._asked = "RPOP"
            self.begin_poll(self.client.connection.pack_command("RPOP", self._prefixed(key), room))

    def _deliver_all(self, key: str, queue: str, items: Sequence[bytes]) -> None:
        """Deliver items; put those back whose consumer has gone."""
        left = list(reversed(items))
        try:
            while left and self.has_consumer(queue):
                item = left.pop()
                message = self.read(item, queue)
                if message is not None and not self.take(message, queue):
                    self.deliver(message, queue)
        finally:
            if left:
                self._put_back(key, left)

    def _put_back(self, key: str, items: Sequence[bytes]) -> None:
        try:
            with self.conn_or_acquire() as client:
                client.rpush(key, *items)
        except self.connection_errors as error:
            logger.warning("%d messages of %r could not be put back: %s", len(items), key, error)

    def _room(self, most: int) -> int:
        credit = self.qos.can_consume_max_estimate()
        room = min(self.capacity.free, most)
        return max(1, room if credit is None else min(room, credit))

    def _prefixed(self, key: str) -> str:
        return f"{self.global_keyprefix}{key}"


class BulkTransport(SparingTransport):
    """Passes the hub of a connection to the code that frees slots."""

    capacity: Capacity
    knows_blmpop = True
    """Whether the server has BLMPOP and lets us use it, until it says otherwise."""

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        self.capacity.serve(loop)
