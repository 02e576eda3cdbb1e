"""Publish to the broker, and mark what was published, in batches and in the background.

A message that the broker does not accept is not lost: its row is recorded already. A lost mark costs one duplicate message, whose claim is
refused: the sweeper publishes unmarked rows again after their grace. So nothing waits for a mark, and no process stays alive for one.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias
from weakref import WeakSet

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.errors import ServiceUnreachable
from flujo_client.transport.brokers import broker_for
from flujo_client.transport.redis import RedisError

logger = logging.getLogger(__name__)

FRESH_S = 1.0
"""A broker that answered this recently is not pinged."""
MARK_AFTER_S = 0.1
PATIENCE_S = 1.0
"""Seconds that a closing client or an ending process waits for marks under way."""

Ages: TypeAlias = Mapping[str, float]
"""Attempt keys → seconds since just before their messages were sent."""


class ClientPublisher:
    """Sends messages to workers through the `broker`, whose errors only `reach` raises."""

    def __init__(self, settings: Settings) -> None:
        self.broker, self._control = broker_for(settings), settings.worker.control_queue
        self._answered_at = float("-inf")

    def reach(self) -> None:
        """Make sure that the broker answers, or has answered within a second; raises ServiceUnreachable."""
        if not self.is_fresh:
            self.broker.reach()
            self._answered_at = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self._answered_at <= FRESH_S

    def publish(self, envelopes: Sequence[Envelope]) -> bool:
        """Send envelopes. False when the broker does not accept them: the sweeper will publish their rows."""
        try:
            self.broker.publish(envelopes)
        except (RedisError, ServiceUnreachable) as error:
            logger.warning("%d messages left to the sweeper: %s", len(envelopes), error)
            self._answered_at = float("-inf")
            return False
        self._answered_at = time.monotonic()
        return True

    def request_sweep(self) -> None:
        """Ask a worker to sweep at once; if that cannot be sent, one will sweep soon anyway."""
        try:
            self.broker.request_sweep(self._control)
        except (RedisError, ServiceUnreachable) as error:
            logger.info("no sweep was requested: %s", error)


class Unmarked:
    """Messages that were published and are not marked yet. Thread-safe."""

    def __init__(self) -> None:
        self._sent: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, keys: Collection[str], sent_at: float) -> bool:
        """Add keys whose messages were sent after `sent_at` on the monotonic clock; return whether these are the first."""
        with self._lock:
            was_empty = not self._sent
            self._sent.update(dict.fromkeys(keys, sent_at))
            return was_empty

    def take(self) -> Ages:
        """Remove and return all of them."""
        with self._lock:
            sent, self._sent = self._sent, {}
        now = time.monotonic()
        return {key: now - at for key, at in sent.items()}


class MarkThread:
    """Marks messages in a daemon thread, which starts with the first key and ends with the batch. `mark` handles its own errors."""

    def __init__(self, mark: Callable[[Ages], None]) -> None:
        self._mark, self._unmarked = mark, Unmarked()
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        _open.add(self)

    def add(self, keys: Collection[str], sent_at: float) -> None:
        """Mark these soon."""
        if self._unmarked.add(keys, sent_at):
            thread = threading.Thread(target=self._mark_soon, name="flujo-sent-marks", daemon=True)
            with suppress(RuntimeError):  # the interpreter is ending and starts no thread any more
                thread.start()
                self._thread = thread

    def hurry(self) -> None:
        """Mark without delay, now and from now on."""
        self._hurry.set()

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Wait briefly for the marks under way."""
        self.hurry()
        if (thread := self._thread) is not None:
            thread.join(patience_s)

    def _mark_soon(self) -> None:
        self._hurry.wait(MARK_AFTER_S)
        if ages := self._unmarked.take():
            self._mark(ages)


_open: WeakSet[MarkThread] = WeakSet()


@atexit.register
def _finish_all() -> None:
    threads, until = list(_open), time.monotonic() + PATIENCE_S
    for each in threads:
        each.hurry()
    for each in threads:
        each.finish(max(0.0, until - time.monotonic()))
