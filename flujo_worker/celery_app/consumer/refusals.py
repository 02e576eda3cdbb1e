"""Handling of refused messages: each is logged without its body, counted, and stored in a bounded list.

Nothing here may fail or delay the caller: a Redis that does not take the copy leaves the line in the log.
"""

from __future__ import annotations

import json
import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flujo_client.errors import ServiceUnreachable
from flujo_client.serial.tree import storable_text
from flujo_client.transport.brokers import dead_letters_for
from flujo_client.transport.dead_letters import MOST_BYTES
from flujo_client.transport.redis import RedisError
from flujo_worker.celery_app.consumer.private_names import raw_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.config.manager import Settings
    from flujo_client.transport.dead_letters import DeadLetters
    from flujo_client.transport.rabbit import RabbitBroker
    from flujo_worker.errors import WireError

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0
"""Seconds that Redis may take: the consumer reads nothing meanwhile."""


class Refusals:
    """Records refused messages. Safe for several threads and after a fork. The settings are read at the first one."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    @cached_property
    def _dead_letters(self) -> DeadLetters | RabbitBroker:
        return dead_letters_for(self._settings(), patience_s=PATIENCE_S)

    def record(self, error: WireError, item: bytes, *, queue: str) -> None:
        """Record an item as it lay in its list."""
        detail = storable_text(" ".join(error.message.split()))
        logger.warning("message in %r refused as %s: %s (%d bytes)", queue, error.reason, detail, len(item))
        try:
            self._dead_letters.add(error.reason, item, queue=queue, detail=detail)
        except (RedisError, ServiceUnreachable) as failure:
            logger.info("the refused message was not stored: %s", failure)

    def record_message(self, error: WireError, message: Any) -> None:
        """Record a message that kombu has read."""
        delivery = message.delivery_info or {}
        self.record(error, _written(message), queue=str(delivery.get("routing_key")))


def _written(message: Any) -> bytes:
    """Write a message for people: its own description first, then the beginning of its body."""
    raw = raw_of(message)
    body = str(raw.get("body") or "")
    headers = {name: value for name, value in raw.items() if name != "body"}
    return json.dumps({**headers, "body": body[:MOST_BYTES], "body_characters": len(body)}, default=str).encode()
