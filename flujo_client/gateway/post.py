"""The client's way to the broker: it publishes what is recorded already, so what the broker does not take is not lost."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from flujo_client.transport.broker import Broker, RedisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.config.manager import Settings
    from flujo_client.contract.deployment import BrokerFacts
    from flujo_client.contract.envelope import Envelope
    from flujo_client.transport.dead_letters import Refused

logger = logging.getLogger(__name__)

FRESH_S = 1.0
"""A broker that has answered this recently is not asked whether it does."""


class ClientPublisher:
    """Sends messages to workers."""

    def __init__(self, settings: Settings) -> None:
        self._broker, self._control = Broker(settings), settings.worker.control_queue
        self._answered_at = float("-inf")

    def reach(self) -> None:
        """Make sure that the broker answers, or has answered within a second; raises ServiceUnreachable."""
        if time.monotonic() - self._answered_at > FRESH_S:
            self._broker.reach()
            self._answered_at = time.monotonic()

    def publish(self, envelopes: Sequence[Envelope]) -> bool:
        """Send envelopes. False when the broker does not take them: the rows stand, and the sweeper will."""
        try:
            self._broker.publish(envelopes)
        except RedisError as error:
            logger.warning("%d messages left to the sweeper: %s", len(envelopes), error)
            self._answered_at = float("-inf")
            return False
        self._answered_at = time.monotonic()
        return True

    def request_sweep(self) -> None:
        """Ask a worker to sweep at once; if that cannot be sent, one will sweep soon anyway."""
        try:
            self._broker.request_sweep(self._control)
        except RedisError as error:
            logger.info("sweep not asked for: %s", error)

    def depths(self, queues: Sequence[str]) -> dict[str, int]:
        """Count the messages in queues; raises ServiceUnreachable."""
        return self._broker.depths(queues)

    def refused(self) -> Refused:
        """Return how many messages workers have refused; raises ServiceUnreachable."""
        return self._broker.refused()

    def describe(self) -> BrokerFacts:
        """Ask the broker what it says of itself; raises ServiceUnreachable."""
        return self._broker.describe()

    def close(self) -> None:
        """Close the connections to the broker."""
        self._broker.close()
