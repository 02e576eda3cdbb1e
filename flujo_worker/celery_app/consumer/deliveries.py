"""Acknowledge messages of RabbitMQ when their attempts have ended, and take no more of them than there are free slots.

RabbitMQ delivers as many messages as may be unacknowledged. If one is for longer than its `consumer_timeout`, it closes the channel, and Celery
ends the worker. So the message of an attempt that runs for long is acknowledged early: its row has the worker's lease.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from flujo_worker.celery_app.consumer.channel import Capacity

logger = logging.getLogger(__name__)

LOOKS: Final = 4
"""How often in `acknowledge_s` seconds the ages of deliveries are checked."""


class Deliveries:
    """The messages of our tasks that a process was delivered, each by itself: one id may come twice at once.

    Args:
        acknowledge_s: seconds after which the message of an attempt that still runs is acknowledged.
        capacity: the slots of our own pool; None for Celery's pools, which use Celery's prefetch count.
    """

    def __init__(self, acknowledge_s: float, capacity: Capacity | None) -> None:
        self._acknowledge_s, self._capacity = acknowledge_s, capacity
        self._since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._acknowledged_early = 0
        self._is_full = False
        self._consumer: Any = None

    def begin(self, consumer: Any) -> None:
        """Begin with a new connection of Celery's consumer, whose hub is the only thread that uses it."""
        self._consumer, self._is_full = consumer, False
        lost = [each for each in self._since if not each.acknowledged]
        self._acknowledged_early += len(lost)
        for message in lost:
            self._leave(message)  # it comes again, and its claim refuses it
        consumer.timer.call_repeatedly(self._acknowledge_s / LOOKS, self._acknowledge_old)
        if self._capacity is not None:
            self._capacity.changed = self._adapt_soon
            self._adapt()

    def watch(self, message: Any) -> None:
        """Acknowledge a message early if its attempt runs for long."""
        self._since[message] = time.monotonic()

    def receipt(self, message: Any) -> Callable[[], object]:
        """Return the function that acknowledges a message when its attempt has ended; it may be called in any thread."""
        return lambda: self._consumer.call_soon(self._acknowledge, message)

    def _acknowledge(self, message: Any) -> None:
        try:
            message.ack()
        except self._consumer.connection_errors as error:
            logger.info("a message was not acknowledged: it comes again, and its claim refuses it: %s", error)
        self._since.pop(message, None)

    def _acknowledge_old(self) -> None:
        until = time.monotonic() - self._acknowledge_s
        old = [each for each, since in self._since.items() if since <= until and not each.acknowledged]
        self._acknowledged_early += len(old)
        self._adapt()  # first: RabbitMQ delivers the next message as soon as it has an acknowledgement
        for message in old:
            self._acknowledge(message)
            self._leave(message)

    def _leave(self, message: Any) -> None:
        """Let an attempt run without a message to acknowledge; its end only updates the count."""
        self._since.pop(message, None)
        message.ack = message.reject = self._end

    def _end(self, **_: Any) -> None:
        self._acknowledged_early -= 1
        self._adapt()

    @property
    def _room(self) -> int:
        return 0 if self._capacity is None else self._capacity.slots - self._acknowledged_early

    def _adapt_soon(self) -> None:
        if self._room != self._consumer.qos.value:
            self._consumer.call_soon(self._adapt)

    def _adapt(self) -> None:
        """Let RabbitMQ deliver to the free slots. Without any, stop consuming, because a prefetch count of 0 means no limit."""
        room, consumer = self._room, self._consumer
        if self._capacity is None or not consumer.task_consumer:
            return
        if room > 0:
            consumer.qos.value = room
            consumer.qos.update()
        if (room <= 0) is not self._is_full:
            self._is_full = not self._is_full
            consumer.task_consumer.cancel() if self._is_full else consumer.task_consumer.consume()
