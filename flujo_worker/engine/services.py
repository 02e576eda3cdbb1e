"""The services of a worker process: its connections, event loops, threads and lease."""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_JOIN, Envelope
from flujo_client.pipeline.cache import InMemoryCache
from flujo_worker.attempts.lease import Lease
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.native import threads
from flujo_worker.coordinator.failure_log import log_failures
from flujo_worker.engine.dispatch import RedisPublisher, Sender
from flujo_worker.engine.engine import Engine, LoopEffects
from flujo_worker.guards.cells import MODELS, RATES, MemoryCells, RedisCells
from flujo_worker.guards.result_cache import RedisCache
from flujo_worker.liveness.heartbeat import Heartbeat
from flujo_worker.liveness.watchdog import Steps
from flujo_worker.observe.system import SystemEvents
from flujo_worker.ports import Member, Verdict
from flujo_worker.runtime.effects import BlockingEffects, Effects
from flujo_worker.store.postgres.groups import GROUP_CONNECTIONS, GroupedLedger
from flujo_worker.store.postgres.stores import PostgresStores

if TYPE_CHECKING:
    from celery import Celery

    from flujo_worker.domain.values import Decision
    from flujo_worker.durable.ledger import StoredUnits
    from flujo_worker.engine.rabbit_publisher import RabbitPublisher
    from flujo_worker.observe.metrics import ProcessMetrics
    from flujo_worker.streams.writers import StreamWriters


class Services:
    """The connections of a process, its event loops and threads, and its lease. With `on_loop` attempts are coroutines on a separate event loop.

    Attributes:
        execute: executes a command of Redis on that loop, where results are; None if that is not the broker.
        metrics: this process's metrics; None if they are not served.
    """

    metrics: ProcessMetrics | None = None

    def __init__(
        self, settings: Settings, app: Celery, member: Member, steps: Steps, *, on_loop: bool, is_child: bool
    ) -> None:
        own, self.settings, self.steps, self.is_child = settings.worker, settings, steps, is_child
        self._slots = member.slots
        self.stopping = threading.Event()
        single = own.pool_max - GROUP_CONNECTIONS if on_loop else own.pool_max
        self.stores = PostgresStores(
            settings.database(), pool_max=single, prepare=settings.prepare_statements, stopping=self.stopping
        )
        self.post = _publisher(settings, app, most=1 if on_loop else 2)
        self.sender = Sender(self.post, self.stores.backlog)
        self.loop, self.threads = Loop(), threads("flujo-user")
        broker = results = self.execute = None
        if isinstance(self.post, RedisPublisher):
            broker = self.post.redis
            if settings.results() == settings.broker():
                results, self.execute = broker, self.post.execute
        if results is not None and settings.counts_chords and not is_child:
            counting: Any = app.tasks[TASK_JOIN].backend
            counting.client = results
        self._redis: tuple[Any, ...] = ()
        if settings.has_redis:
            cells = (RedisCells(kind, settings, broker) for kind in (MODELS, RATES))
            self._redis = RedisCache(settings, results), *cells
        own_cells = (MemoryCells[Any](kind, time.time) for kind in (MODELS, RATES))
        self.results, self.models, self.rates = self._redis or (InMemoryCache(), *own_cells)
        self.engine = Engine() if on_loop else None
        self.effects: Effects = BlockingEffects(self.stores, self.sender.send)
        if self.engine is not None:
            self.groups = GroupedLedger(
                settings.database(),
                prepare=settings.prepare_statements,
                counts_chords=settings.counts_chords,
                is_alone=self.engine.carries_one,
            )
            self.engine.run(self.groups.open())
            self.stores.pool.on_silence = self.groups.doubt
            self.effects = LoopEffects(self.engine, self.stores, self.groups, self.threads, self.sender, at_once=single)
        self.heartbeat = Heartbeat(own.heartbeat_file)
        self.lease = Lease(
            self.stores.leases,
            member,
            lease_s=own.lease_s,
            renew_s=own.renew_s,
            on_renewed=self.heartbeat.beat,
            on_stop_request=lambda: steps.stop(),  # noqa: PLW0108 - the code that runs the process replaces it
        )
        self.loop.settle = self.lease.settle
        if isinstance(self.effects, LoopEffects):
            self.effects.sharing = lambda: self.lease.sharing
        self.events = SystemEvents(self.stores.records, self.worker)

    def note_merged(self, decision: Decision) -> None:
        """Log the failures of a decision that was committed here, count it, and stream the questions that it asks."""
        log_failures(decision)
        if self.metrics is not None:
            self.metrics.merged(decision)
        if (decision.notice.envelope.ticket.settings or {}).get("stream") and self.settings.has_redis:
            self._stream_questions(decision)

    def _stream_questions(self, decision: Decision) -> None:
        """Stream what steps ask people; a step that has paused streams its question itself."""
        for each in decision.next if decision.close.reason != "paused" else ():
            if each.kind == "resume" and each.question and "event" not in each.question:
                writer = self.streams.writer(decision.envelope_of(each), fence=0)
                writer.put("question", {"message": each.question["message"]})

    def note_refused(self, verdict: Verdict) -> None:
        if self.metrics is not None:
            self.metrics.refused(verdict)

    def sample(self) -> None:
        if self.metrics is not None:
            used, late_s, silent_s = len(self.lease.keys), self.loop.late_s, self.lease.silent_s
            self.metrics.sample(self.worker(), slots=self._slots, used=used, late_s=late_s, silent_s=silent_s)

    def units(self) -> StoredUnits:
        """Return where the units of durable attempts are written on the engine's loop: in groups."""
        from flujo_worker.engine.grouped_units import GroupedUnits

        assert self.engine is not None
        return GroupedUnits(self.stores, self.groups, self.engine)

    @cached_property
    def streams(self) -> StreamWriters:
        from flujo_worker.streams.writers import StreamWriters

        return StreamWriters(self.settings)

    def withdraw_stream(self, envelope: Envelope, fence: int) -> None:
        """Withdraw what an attempt has streamed under claims before this fence."""
        self.streams.withdraw(envelope, fence)

    def worker(self) -> str:
        return self.lease.worker

    def close(self) -> None:
        """Close the connections, and end the loops and threads."""
        if "streams" in vars(self):
            self.streams.close()
        if self.engine is not None:
            self.engine.close(self.groups.close())
        self.loop.close()
        self.threads.shutdown()
        for connection in (*self._redis, self.post, self.stores):
            connection.close()


def _publisher(settings: Settings, app: Celery, *, most: int) -> RedisPublisher | RabbitPublisher:
    if not settings.uses_rabbitmq:
        return RedisPublisher(settings, app, most=most)
    from flujo_worker.engine.rabbit_publisher import RabbitPublisher

    return RabbitPublisher(settings)
