"""The way out to the broker, after the commit, and what a sweep asks of it.

What is sent is marked `queued` in batches, off the hot path: a claim accepts a row that is still `ready`, so a mark that is lost
costs one doubled message, never more.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import orjson
import redis

from flujo_client.broker import PRIORITY_STEPS, SENT_HEADER, Broker
from flujo_worker.errors import DispatchError, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flujo_client.config import Settings
    from flujo_client.contract.envelope import Envelope
    from flujo_worker.ports import Backlog

logger = logging.getLogger(__name__)

EPOCH_KEY = "flujo:epoch"
MARK_EVERY_S = 0.1


class RedisPost:
    """Publishes to Redis, and looks at what lies there.

    Args:
        settings: where the broker is.
    """

    def __init__(self, settings: Settings) -> None:
        self._broker = Broker(settings)
        self._epoch_key = settings.broker_key_prefix + EPOCH_KEY

    def send(self, envelopes: Sequence[Envelope]) -> None:
        try:
            self._broker.publish(envelopes)
        except redis.RedisError as error:
            raise DispatchError(f"{len(envelopes)} messages not published: {error}", cause=error) from error

    def epoch(self) -> str:
        drawn = f"{time.time_ns():x}"
        try:
            while not self._broker.redis.set(self._epoch_key, drawn, nx=True):  # NX together with GET needs Redis 7
                kept: Any = self._broker.redis.get(self._epoch_key)
                if kept is not None:
                    return str(bytes(kept).decode())
        except redis.RedisError as error:
            raise DispatchError(f"the broker does not answer: {error}", cause=error) from error
        return drawn

    def heads(self, queues: Collection[str]) -> dict[str, float | None]:
        try:
            return {queue: self._head(queue) for queue in queues}
        except redis.RedisError as error:
            raise DispatchError(f"the broker does not answer: {error}", cause=error) from error

    def close(self) -> None:
        """Close the connections."""
        self._broker.close()

    def _head(self, queue: str) -> float | None:
        """The oldest of the next messages over all priorities; 0.0 for a message that does not say when it was sent."""
        pipe = self._broker.redis.pipeline(transaction=False)
        for step in PRIORITY_STEPS:
            pipe.lindex(self._broker.key(queue, step), -1)
        sent = [_sent_at(head) for head in pipe.execute() if head is not None]
        return min(sent, default=None)


class Sender:
    """Sends one attempt's successor, and marks what was sent in batches from a thread of its own."""

    def __init__(self, post: RedisPost, backlog: Backlog) -> None:
        self._post, self._backlog = post, backlog
        self._sent: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._mark_forever, name="flujo-marker", daemon=True)

    def start(self) -> Sender:
        """Mark from now on."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Mark what is left and stop."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def send(self, envelope: Envelope) -> None:
        """Publish; what the broker does not take stays in its row for the sweeper."""
        before = time.monotonic()
        try:
            self._post.send([envelope])
        except DispatchError as error:
            logger.warning("%s left to the sweeper: %s", envelope.key, error)
            return
        with self._lock:
            self._sent[envelope.key] = before

    def _mark_forever(self) -> None:
        while not self._stopping.wait(MARK_EVERY_S):
            self._mark()
        self._mark()

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
        except Exception:
            logger.exception("%d messages not marked as sent", len(sent))


def _sent_at(raw: bytes) -> float:
    try:
        return float(orjson.loads(raw)["headers"][SENT_HEADER])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return 0.0
