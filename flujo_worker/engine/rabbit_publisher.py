"""Publish to RabbitMQ: attempts that publish at the same moment share one group of confirmations, which takes milliseconds each time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

from flujo_client.contract.envelope import Envelope
from flujo_client.transport.rabbit import RabbitBroker
from flujo_worker.engine.dispatch import BrokerPublisher
from flujo_worker.runtime.batcher import Batcher

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.transport.loop_publisher import Taken

EPOCH = "rabbitmq"
"""The constant epoch: durable queues survive a restart, and the sweeper publishes lost messages again once a queue is empty."""


class RabbitPublisher(BrokerPublisher):
    """Publishes to RabbitMQ. It takes no messages back, and has no chords: the worker that closes a branch checks whether it was the last."""

    counts_chords = False

    def __init__(self, settings: Settings) -> None:
        self._broker: RabbitBroker
        super().__init__(RabbitBroker(settings))
        self._thread, self._together = ThreadPoolExecutor(1, "flujo-rabbitmq"), Batcher(self._send_groups)

    async def push(self, envelopes: Sequence[Envelope], *, take: int = 0) -> Sequence[Taken]:  # noqa: ARG002 - for Redis
        await self._together(envelopes)
        return ()

    def put_back(self, message: bytes, like: Envelope) -> NoReturn:
        raise AssertionError(f"{len(message)} bytes of {like.queue} were not taken: RabbitMQ gives nothing back")

    def open_chord(self, run: str, fan_out: str, lanes: int) -> NoReturn:
        raise AssertionError(f"{run}:{fan_out} has {lanes} lanes and no chord: those need a result backend")

    def epoch(self) -> str:
        return EPOCH

    def heads(self, queues: Collection[str]) -> dict[str, float | None]:
        """Return None for queues that are empty. AMQP shows no message without delivering it, so 0.0 stands for all others."""
        return {queue: 0.0 if depth else None for queue, depth in self.depths(queues).items()}

    def close(self) -> None:
        self._thread.shutdown()
        self._broker.close()

    async def _send_groups(self, groups: Sequence[Sequence[Envelope]]) -> list[None]:
        envelopes = [envelope for group in groups for envelope in group]
        await asyncio.get_running_loop().run_in_executor(self._thread, self.send, envelopes)
        return [None] * len(groups)
