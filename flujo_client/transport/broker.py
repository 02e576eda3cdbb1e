"""Publish to the broker, for clients and workers: a message is built once and pushed in one round trip.

The result in Redis is a plain Celery message, protocol 2, as kombu's Redis transport writes it, so stock workers, inspect
and Flower understand it (a contract test compares the two). Celery's own publisher costs ten times as much for each message, most of
it in rebuilding clients (celery's and kombu's, not Redis's).
"""

from __future__ import annotations

import base64
import os
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson

from flujo_client.contract.deployment import BrokerFacts
from flujo_client.contract.envelope import Envelope
from flujo_client.errors import ServiceUnreachable
from flujo_client.redact import mask_url
from flujo_client.transport.dead_letters import DeadLetter, DeadLetters, Refused
from flujo_client.transport.entry import CONTENT_TYPE
from flujo_client.transport.messages import MessageWriter, TaskMessage
from flujo_client.transport.redis import RedisError, connect, lacking, rules

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings

PRIORITY_STEPS = (0, 3, 6, 9)
SEPARATOR = "\x06\x16"
PUSH_MESSAGES = 1000
PUSH_BYTES = 8 * 1024 * 1024
"""The maximum size of one push: Redis serves no other client meanwhile."""
_TAGS, _NUMBERS = uuid.uuid4().hex, count()
"""Delivery tags are unique by process and number: to draw each at random costs more than all else about a message."""


class Broker:
    """Publishes messages to Redis. Safe for several threads. The `options` are those of `connect`."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        self._url, self._prefix = settings.broker(), settings.broker_key_prefix
        self._writer = MessageWriter(settings)
        self.redis = connect(self._url, settings.sentinel_options(), **options)

    def reach(self) -> None:
        """Make sure that the broker answers; raises ServiceUnreachable."""
        with self._answering():
            self.redis.ping()

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """Count the messages in each queue, over all priorities; raises ServiceUnreachable."""
        names = list(queues)
        pipe = self.redis.pipeline(transaction=False)
        for name in names:
            for step in PRIORITY_STEPS:
                pipe.llen(self.key(name, step))
        with self._answering():
            counts = pipe.execute()
        width = len(PRIORITY_STEPS)
        return {name: sum(counts[at * width : (at + 1) * width]) for at, name in enumerate(names)}

    def refused(self) -> Refused:
        """Return how many messages workers have refused; raises ServiceUnreachable."""
        with self._answering():
            return DeadLetters(self.redis, self._prefix).refused()

    def dead_letters(self, most: int) -> list[DeadLetter]:
        """Return the messages that workers refused last, newest first, at most so many; raises ServiceUnreachable."""
        with self._answering():
            return DeadLetters(self.redis, self._prefix).newest(most)

    def describe(self) -> BrokerFacts:
        """Ask Redis for its version, its clock, its eviction and whether it persists its data; raises ServiceUnreachable."""
        self.reach()
        reported, clock = self._if_allowed(self.redis.info) or {}, self._if_allowed(self.redis.time)
        saves = (self._if_allowed(lambda: self.redis.config_get("save")) or {}).get(b"save", b"unknown")
        is_kept = bool(reported.get("aof_enabled")) or bool(saves)
        return BrokerFacts(
            version=reported.get("valkey_version") or reported.get("redis_version"),
            clock=None if clock is None else clock[0] + clock[1] / 1e6,
            eviction=reported.get("maxmemory_policy"),
            is_kept=None if saves == b"unknown" and not reported.get("aof_enabled") else is_kept,
            not_granted=self._if_allowed(self._lacking) or (),
            rules=rules(self._prefix, self._database),
        )

    @property
    def _database(self) -> int:
        return int(self.redis.get_connection_kwargs().get("db") or 0)

    def _lacking(self) -> tuple[str, ...]:
        connection = self.new_connection()
        try:
            return tuple(lacking(connection, self._prefix, self._database))
        finally:
            connection.disconnect()

    def _if_allowed(self, ask: Callable[[], Any]) -> Any:
        """Return what Redis answers; None where it does not allow the question, as services of clouds do."""
        with suppress(RedisError):
            return ask()
        return None

    def publish(self, envelopes: Sequence[Envelope], *, first: bool = False) -> None:
        """Publish one message for each envelope, in one round trip for each queue; raises RedisError.

        Work in a fan-out is published as a part of its chord, and a join as its join signal. With `first`, they go to the front of the
        queue.
        """
        push = self.redis.rpush if first else self.redis.lpush
        for key, messages in self.pushes(envelopes):
            push(key, *messages)

    def request_sweep(self, queue: str) -> None:
        """Ask a worker to sweep at once; raises RedisError."""
        self.redis.lpush(self.key(queue), celery_message(self._writer.request_sweep(queue)))

    def key(self, queue: str, priority: int | None = None) -> str:
        """Return the Redis list of a queue's messages of a priority."""
        step = PRIORITY_STEPS[bisect_right(PRIORITY_STEPS, priority or 0) - 1]
        return self._prefix + (f"{queue}{SEPARATOR}{step}" if step else queue)

    def close(self) -> None:
        self.redis.connection_pool.disconnect()

    def new_connection(self) -> Any:
        """Return a connection of redis-py's, not connected yet, for pushing from an event loop."""
        pool = self.redis.connection_pool  # its `make_connection` would count it as the pool's for ever
        return pool.connection_class(**pool.connection_kwargs)

    def pushes(self, envelopes: Sequence[Envelope]) -> Iterator[tuple[str, Sequence[bytes]]]:
        """Return the lists that messages are to be pushed to, each with what goes there at once."""
        queues: dict[str, list[bytes]] = {}
        for envelope in envelopes:
            key = self.key(envelope.queue, envelope.ticket.priority)
            queues.setdefault(key, []).append(celery_message(self._writer.write(envelope)))
        return ((key, some) for key, messages in queues.items() for some in _portions(messages))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            what = f"the broker does not answer at {mask_url(self._url)}: {error}"
            raise ServiceUnreachable(what, suggestion="check FLUJO_BROKER_URL", cause=error) from error


def celery_message(message: TaskMessage) -> bytes:
    """Write a task message as kombu's Redis transport stores it."""
    properties = {
        "correlation_id": message.headers["id"],
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": message.queue},
        "priority": message.priority or 0,
        "body_encoding": "base64",
        "delivery_tag": f"{_TAGS}-{os.getpid():x}-{next(_NUMBERS):x}",
    }
    body, kind = base64.b64encode(message.body).decode(), {"content-encoding": "binary", "content-type": CONTENT_TYPE}
    return orjson.dumps({"body": body, **kind, "headers": message.headers, "properties": properties})


def _portions(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Divide messages into pushes of a bounded size."""
    begin = size = 0
    for at, message in enumerate(messages):
        size += len(message)
        if at > begin and (at - begin == PUSH_MESSAGES or size > PUSH_BYTES):
            yield messages[begin:at]
            begin, size = at, len(message)
    yield messages[begin:]
