"""One simulated worker process: the engine's own lease, attempts, coordinator, sender and sweeper, over a world that may fail it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from simulated_runs import SETTINGS
from simulated_world import Broker, BrokerConnection, Died, Fuse, Message, Statements, SteppedEffects

from flujo_client.contract.envelope import TASK_JOIN, Envelope, JoinSignal
from flujo_client.plan.plan import Backoff
from flujo_client.serial import loads
from flujo_worker.attempts.lease import Lease
from flujo_worker.attempts.perform import Attempts
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.concurrency.call_context import waiting_for_locks
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.engine.dispatch import Sender
from flujo_worker.runtime.question import UserCodeRuntime
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.user_code.evaluator import Evaluator
from flujo_worker.user_code.hooks import HookCaller
from tests.support.builders import member
from tests.support.sweeping import sweeper_of

LEASE_S, RENEW_S = 30.0, 10.0
BACKOFF = Backoff(**SETTINGS.retry.model_dump())


class SteppedLease(Lease):
    """A lease without a thread: whoever waits for the next incarnation does what the thread does."""

    def wait_for_another(self, worker: str, *, seconds: float) -> bool:
        self._renew()
        return super().wait_for_another(worker, seconds=0.0)


class SimulatedWorker:
    """A process.

    Args:
        name: of the first incarnation.
        store: the store of all.
        broker: the broker of all.
        bench: where user code runs.
        catalog: the code of all.
        watch: called around each of its statements.

    Attributes:
        tasks: the deliveries under way.
        ended: runs with gates that have ended here; the next admission begins with them.
    """

    def __init__(
        self,
        name: str,
        stores: MemoryStores,
        broker: Broker,
        bench: UserCodeRuntime,
        catalog: CodeRegistry,
        watch: Callable[..., Any],
    ) -> None:
        self.name, self.fuse = name, Fuse()
        self.tasks: list[Task] = []
        self.ended: list[str] = []
        self.broker = BrokerConnection(broker, self.fuse)
        rows: Any = Statements(stores, self.fuse, watch)
        self.sender = Sender(self.broker, rows.backlog)  # type: ignore[arg-type]
        self.effects = SteppedEffects(rows, self.sender.send, self.fuse)
        self.coordinator = Coordinator(
            rows,
            self.sender.send,
            Evaluator(rows, catalog, bench),
            backoff=BACKOFF,
            inline=SETTINGS.limits.snapshot_inline_bytes,
            on_gated_end=self.ended.append,
            counts_chords=broker.counts_chords,
            effects=self.effects,
        )
        self.lease = SteppedLease(rows.leases, member(name), lease_s=LEASE_S, renew_s=RENEW_S)
        stores.leases.register_worker(member(name), LEASE_S)
        hooks = HookCaller(catalog, bench, strict=False)
        loop, threads = bench.loop, bench.threads
        self.attempts = Attempts(rows, self.coordinator, self.lease, loop, threads, hooks, SETTINGS, models=None)
        self.sweeper = sweeper_of(
            rows, self.broker, self.coordinator, catalog, lease=self.lease, max_lost=SETTINGS.worker.max_lost
        )

    def renew(self) -> None:
        """Do what the lease's thread does."""
        self.lease._renew()

    def mark(self) -> None:
        """Do what the sender's thread does."""
        self.sender._mark()

    def admit(self) -> None:
        """Do what the admission's thread does."""
        ended, self.ended[:] = list(self.ended), []
        if ended:
            self.coordinator.admit(ended)

    def die(self) -> None:
        """End: nothing of this process acts any more. Its lease lasts until it is over."""
        self.fuse.is_dead = True
        for task in self.tasks:
            task.abandon()
        self.tasks.clear()

    def receive(self, message: Message) -> Task:
        """Begin with a message."""
        task = Task(self, message)
        self.tasks.append(task)
        return task

    async def deliver(self, body: bytes) -> None:
        """Do what the consumer does with a message."""
        wire, envelope = loads(body), None
        if wire["task"] == TASK_JOIN:
            signal = JoinSignal.from_wire(wire)
            envelope = await self.effects.call(self.coordinator.join_if_due, signal.run, signal.address)
        else:
            envelope = Envelope.from_wire(wire)
        if envelope is not None:
            with waiting_for_locks():
                delivered = await self.attempts.deliver(envelope)
            if delivered.is_part:
                self.broker.count(envelope)


class Task:
    """A delivery under way in a worker; its coroutine stops before everything that it asks of the world."""

    def __init__(self, worker: SimulatedWorker, message: Message) -> None:
        self.worker, self.message, self.at = worker, message, "received"
        self._context, self._coroutine = copy_context(), worker.deliver(message.body)

    def step(self) -> bool:
        """Continue to the next stop; return whether there is one."""
        try:
            self.at = self._context.run(self._coroutine.send, None)
        except StopIteration:
            return False
        return True

    def abandon(self) -> None:
        """Drop it with its process: whatever cleans up finds the process dead."""
        with suppress(Died):
            self._context.run(self._coroutine.close)
