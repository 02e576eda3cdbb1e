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
    """Return the broker that settings name, not connected yet, for callers that a sweeper relieves of what has no answer."""
    return _rabbit(settings) if settings.uses_rabbitmq else Broker(settings, repeats=False)


def dead_letters_for(settings: Settings, *, patience_s: float) -> DeadLetters | RabbitBroker:
    """Return where refused messages are kept; Redis may take `patience_s` seconds for one."""
    if settings.uses_rabbitmq:
        return _rabbit(settings)
    client = connect(settings.broker(), settings.sentinel_options(), patience_s=patience_s)
    return DeadLetters(client, settings.broker_key_prefix)


def _rabbit(settings: Settings) -> RabbitBroker:
    from flujo_client.transport.rabbit import RabbitBroker

    return RabbitBroker(settings)
