"""Publish to the broker, for clients and workers: a message is built once and pushed in one round trip.

The result in Redis is a plain Celery message, protocol 2, as kombu's Redis transport writes it, so stock workers, inspect
and Flower understand it (a contract test compares the two). Celery's own publisher costs ten times as much for each message, most of
it in rebuilding clients (celery's and kombu's, not Redis's).
"""

from __future__ import annotations

import base64
import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson

from flujo_client.contract.deployment import BrokerFacts
from flujo_client.contract.envelope import TASK_SWEEP, TASKS, Envelope, JoinSignal
from flujo_client.errors import ServiceUnreachable
from flujo_client.redact import mask_url
from flujo_client.transport.chords import membership
from flujo_client.transport.dead_letters import DeadLetter, DeadLetters, Refused
from flujo_client.transport.entry import CONTENT_TYPE
from flujo_client.transport.redis import RedisError, connect, lacking, rules
from flujo_client.transport.wire import MAX_BYTES, dump

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings

PRIORITY_STEPS = (0, 3, 6, 9)
SEPARATOR = "\x06\x16"
SENT_HEADER = "flujo_sent_at"
PUSH_MESSAGES = 1000
PUSH_BYTES = 8 * 1024 * 1024
"""The maximum size of one push: Redis serves no other client meanwhile."""
_TAGS, _NUMBERS = uuid.uuid4().hex, count()
"""Delivery tags are unique by process and number: to draw each at random costs more than all else about a message."""
_EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class Broker:
    """Publishes messages to Redis. Safe for several threads.

    Args:
        settings: the broker's URL, its key prefix, and the signing keys.
    """

    def __init__(self, settings: Settings) -> None:
        self._url, self._prefix = settings.broker(), settings.broker_key_prefix
        self._keys = settings.keys()
        self._max_bytes = settings.limits.message_max_bytes
        self._control = settings.worker.control_queue
        self.redis = connect(self._url, settings.sentinel_options())

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
        self.redis.lpush(self.key(queue), self._message(TASK_SWEEP, (), str(uuid.uuid4()), queue, {}, None))

    def key(self, queue: str, priority: int | None = None) -> str:
        """Return the Redis list of a queue's messages of a priority."""
        step = PRIORITY_STEPS[bisect_right(PRIORITY_STEPS, priority or 0) - 1]
        return self._prefix + (f"{queue}{SEPARATOR}{step}" if step else queue)

    def close(self) -> None:
        """Close the connections."""
        self.redis.close()

    def new_connection(self) -> Any:
        """Return a connection of redis-py's, not connected yet, for pushing from an event loop."""
        pool = self.redis.connection_pool  # its `make_connection` would count it as the pool's for ever
        return pool.connection_class(**pool.connection_kwargs)

    def pushes(self, envelopes: Sequence[Envelope]) -> Iterator[tuple[str, Sequence[bytes]]]:
        """Return the lists that messages are to be pushed to, each with what goes there at once."""
        queues: dict[str, list[bytes]] = {}
        for envelope in envelopes:
            key = self.key(envelope.queue, envelope.ticket.priority)
            queues.setdefault(key, []).append(self._work(envelope))
        return ((key, some) for key, messages in queues.items() for some in _portions(messages))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise ServiceUnreachable(
                f"the broker does not answer at {mask_url(self._url)}: {error}",
                suggestion="check FLUJO_BROKER_URL",
                cause=error,
            ) from error

    def _work(self, envelope: Envelope) -> bytes:
        run, priority = envelope.ticket.run, envelope.ticket.priority
        headers: dict[str, Any] = {"flujo_run": run, "flujo_step": envelope.step}
        if envelope.kind != "join":
            headers["shadow"] = shown_name(envelope.ticket.reference, envelope.step)
        embed = _EMBED
        part = membership(run, envelope.lanes, queue=self._control, priority=priority)
        if part:
            headers |= {"group": part["group_id"], "group_index": part["group_index"]}
            embed = {**_EMBED, "chord": part["chord"]}
        joins = envelope.kind == "join"
        args: tuple[Any, ...] = ([], JoinSignal(run, envelope.address).to_wire()) if joins else (envelope.to_wire(),)
        return self._message(TASKS[envelope.kind], args, envelope.key, envelope.queue, headers, priority, embed)

    def _message(
        self,
        task: str,
        args: tuple[Any, ...],
        task_id: str,
        queue: str,
        headers: Mapping[str, Any],
        priority: int | None,
        embed: Mapping[str, Any] = _EMBED,
    ) -> bytes:
        body = dump((args, {}, embed), keys=self._keys, max_bytes=self._max_bytes or MAX_BYTES)
        return celery_message(task, body, task_id=task_id, queue=queue, headers=headers, priority=priority)


def celery_message(
    task: str, body: bytes, *, task_id: str, queue: str, headers: Mapping[str, Any], priority: int | None
) -> bytes:
    """Write a task message as kombu's Redis transport stores it."""
    message = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "binary",
        "content-type": CONTENT_TYPE,
        "headers": {**task_headers(task, task_id), SENT_HEADER: time.time(), **headers},
        "properties": {
            "correlation_id": task_id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": priority or 0,
            "body_encoding": "base64",
            "delivery_tag": f"{_TAGS}-{os.getpid():x}-{next(_NUMBERS):x}",
        },
    }
    return orjson.dumps(message)


def shown_name(reference: str, step: str) -> str:
    """Return the name under which logs, `celery inspect` and Flower show an attempt: its pipeline and its step, in 200 printable characters."""
    name = f"{reference}/{step}"[:200]
    return name if name.isprintable() else "".join(each if each.isprintable() else "?" for each in name)


def task_headers(task: str, task_id: str) -> dict[str, Any]:
    """Return the headers of a message that is to be executed once, at once, and reports nothing.

    The reprs are short, for Flower and logs must not show what is in a context.
    """
    return {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": f"({task_id})",
        "kwargsrepr": "{}",
        "origin": "flujo",
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }


def _portions(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Divide messages into pushes of a bounded size."""
    begin = size = 0
    for at, message in enumerate(messages):
        size += len(message)
        if at > begin and (at - begin == PUSH_MESSAGES or size > PUSH_BYTES):
            yield messages[begin:at]
            begin, size = at, len(message)
    yield messages[begin:]
