"""Choose the transport by the broker's URL: Redis, or RabbitMQ, whose library is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.transport.broker import Broker
from flujo_client.transport.dead_letters import DeadLetters
from flujo_client.transport.redis import connect

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.transport.rabbit import RabbitBroker


def broker_for(settings: Settings) -> Broker | RabbitBroker:
    """Return the broker that settings name, not connected yet."""
    if not settings.uses_rabbitmq:
        return Broker(settings)
    from flujo_client.transport.rabbit import RabbitBroker

    return RabbitBroker(settings)


def dead_letters_for(settings: Settings, *, patience_s: float) -> DeadLetters | RabbitBroker:
    """Return where refused messages are kept; Redis may take `patience_s` seconds for one."""
    if isinstance(broker := broker_for(settings), Broker):
        client = connect(settings.broker(), settings.sentinel_options(), patience_s=patience_s)
        return DeadLetters(client, settings.broker_key_prefix)
    return broker
