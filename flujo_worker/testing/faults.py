"""Faults for tests: messages that a broker loses, delivers twice or out of order, by chance and with a seed that repeats them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from flujo_client.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Faults:
    """The rates of injected faults, as shares of all messages: at least 0, and below 1.

    Attributes:
        seed: the same faults happen under the same seed.
        lost: messages that are never delivered. As on services, a sweep finds and repeats them after some seconds of the engine's clock.
        doubled: messages that are delivered again later.
        reordered: messages that others overtake.

    Raises:
        ConfigurationError: a share is out of range.
    """

    seed: int = 0
    lost: float = 0.0
    doubled: float = 0.0
    reordered: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lost", "doubled", "reordered"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise ConfigurationError(f"`{name}` of Faults must be at least 0 and below 1, got {share}")


class FaultyDelivery:
    """Takes messages from a bus with faults."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._random = Random(faults.seed)  # noqa: S311 - faults that can be repeated, not secrets

    def take(self, bus: deque[bytes]) -> Sequence[bytes]:
        """Take a message off the bus; return it, or nothing if it is lost."""
        place = self._random.randrange(len(bus)) if self._happens(self._faults.reordered) else 0
        message = bus[place]
        del bus[place]
        if self._happens(self._faults.lost):
            return ()
        if self._happens(self._faults.doubled):
            bus.append(message)
        return (message,)

    def _happens(self, share: float) -> bool:
        return self._random.random() < share
