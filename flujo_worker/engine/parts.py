"""The parts of a worker process, each built from those before it: services, users' code, attempts, upkeep."""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flujo_client.config.manager import Settings
from flujo_client.config.model_guards import first_rows
from flujo_client.contract.envelope import TASK_JOIN, Envelope
from flujo_client.pipeline.cache import InMemoryCache
from flujo_client.plan.plan import Backoff
from flujo_worker.agents.refused_formats import RefusedFormats
from flujo_worker.attempts.lease import Lease
from flujo_worker.attempts.perform import Attempts
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.native import threads
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.coordinator.failure_log import log_failures
from flujo_worker.domain.retention import DAY_S
from flujo_worker.engine.dispatch import RedisPublisher, Sender
from flujo_worker.engine.engine import Engine, LoopEffects
from flujo_worker.guards.cells import MODELS, RATES, MemoryCells, RedisCells
from flujo_worker.guards.live import LiveGuards
from flujo_worker.guards.models import CalledModels
from flujo_worker.guards.rates import RateLimiter
from flujo_worker.guards.result_cache import RedisCache
from flujo_worker.liveness.heartbeat import Heartbeat
from flujo_worker.liveness.neighbours import Neighbours
from flujo_worker.liveness.self_check import SelfCheck
from flujo_worker.liveness.watchdog import Steps, Watchdog
from flujo_worker.observe.system import SystemEvents
from flujo_worker.own_keys import OwnKeys
from flujo_worker.ports import Member, Verdict
from flujo_worker.recovery.admission import AdmissionThread
from flujo_worker.recovery.hand_back import HandBack
from flujo_worker.recovery.hook_delivery import HookDelivery, HookThread
from flujo_worker.recovery.import_trials import ImportTrials
from flujo_worker.recovery.lost_work import UNPARK_EVERY_S, LostWork, ParkedRuns
from flujo_worker.recovery.quarantine import STOP_S, Quarantine
from flujo_worker.recovery.retention import TALLY_EVERY_S, UNITS_S, Pruner, UnitPruner
from flujo_worker.recovery.sweeper import Chore, Sweeper
from flujo_worker.runtime.effects import BlockingEffects, Effects
from flujo_worker.store.postgres.groups import GROUP_CONNECTIONS, GroupedLedger
from flujo_worker.store.postgres.stores import PostgresStores
from flujo_worker.user_code.evaluator import Evaluator, user_code_runtime
from flujo_worker.user_code.hooks import HookCaller

if TYPE_CHECKING:
    from celery import Celery

    from flujo_worker.domain.values import Decision
    from flujo_worker.durable.ledger import StoredUnits
    from flujo_worker.engine.rabbit_publisher import RabbitPublisher
    from flujo_worker.observe.metrics import ProcessMetrics
    from flujo_worker.recovery.schedules import Enqueue
    from flujo_worker.streams.writers import StreamWriters

DUE_SCHEDULES = 100
"""How many schedules one sweep fires at most."""


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
        self.results, self.models, self.rates = self._redis or _own_state()
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
        """Log the failures of a decision that was committed here, and count it."""
        log_failures(decision)
        if self.metrics is not None:
            self.metrics.merged(decision)

    def note_refused(self, verdict: Verdict) -> None:
        """Count an outcome that came too late."""
        if self.metrics is not None:
            self.metrics.refused(verdict)

    def sample(self) -> None:
        """Take the gauges of this process."""
        if self.metrics is not None:
            late_s, silent_s = self.loop.late_s, self.lease.silent_s
            self.metrics.sample(
                self.worker(), slots=self._slots, used=len(self.lease.keys), late_s=late_s, silent_s=silent_s
            )

    def units(self) -> StoredUnits:
        """Return where the units of durable attempts are written."""
        if self.engine is None:
            from flujo_worker.durable.ledger import StoredUnits

            return StoredUnits(self.stores)
        from flujo_worker.engine.grouped_units import GroupedUnits

        return GroupedUnits(self.stores, self.groups, self.engine)

    @cached_property
    def streams(self) -> StreamWriters:
        """Return what writes the streams of runs."""
        from flujo_worker.streams.writers import StreamWriters

        return StreamWriters(self.settings)

    def withdraw_stream(self, envelope: Envelope, fence: int) -> None:
        """Withdraw what an attempt has streamed under claims before this fence."""
        self.streams.withdraw(envelope, fence)

    def worker(self) -> str:
        """Return the id of this process's present incarnation."""
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


def _own_state() -> tuple[InMemoryCache, MemoryCells[Any], MemoryCells[Any]]:
    """Return where a process keeps results, models and rates that it shares with no other."""
    return InMemoryCache(), MemoryCells(MODELS, time.time), MemoryCells(RATES, time.time)


def _publisher(settings: Settings, app: Celery, *, most: int) -> RedisPublisher | RabbitPublisher:
    if not settings.uses_rabbitmq:
        return RedisPublisher(settings, app, most=most)
    from flujo_worker.engine.rabbit_publisher import RabbitPublisher

    return RabbitPublisher(settings)


class UserCode:
    """Loads users' code, and runs it within its bounds."""

    def __init__(self, services: Services) -> None:
        settings, stores = services.settings, services.stores

        def note_plan(fingerprint: str) -> None:
            stores.code.note_plan(services.lease.worker, fingerprint, settings.worker.build)

        self.catalog = CodeRegistry(settings.allowed_imports, stores.code.plan, note_plan)
        self.runtime = user_code_runtime(settings, services.loop, services.threads, services.results)
        self.hooks = HookCaller(self.catalog, self.runtime, strict=settings.hooks.strict)
        self.evaluator = Evaluator(stores, self.catalog, self.runtime)


class AttemptEngine:
    """Performs attempts and moves runs on. Without `check` an attempt may break the process, because no other attempt runs there."""

    def __init__(
        self, services: Services, code: UserCode, quarantine: Quarantine, keys: OwnKeys, check: SelfCheck | None
    ) -> None:
        settings, stores, sender = services.settings, services.stores, services.sender
        self.hooks_due, self.admission = threading.Event(), AdmissionThread()
        self.coordinator = Coordinator(
            stores,
            sender.send,
            code.evaluator,
            backoff=Backoff(**settings.retry.model_dump()),
            send_later=sender.send_later,
            inline=settings.limits.snapshot_inline_bytes,
            control_queue=settings.worker.control_queue,
            loaded_plan=code.catalog.plan,
            on_hooks_due=self.hooks_due.set,
            on_merged=services.note_merged,
            on_refused=services.note_refused,
            on_gated_end=self.admission.ended,
            counts_chords=settings.counts_chords,
            effects=services.effects,
        )
        self.changes = CodeChanges(
            stores,
            sender.send,
            on_change=settings.runs.on_change,
            control_queue=settings.worker.control_queue,
            build=settings.worker.build,
            worker=services.worker,
        )
        self.file_settings = [] if services.is_child else first_rows(settings)
        guards = LiveGuards(stores.limits.guard_rows, self.file_settings)
        self.attempts = Attempts(
            stores,
            self.coordinator,
            services.lease,
            services.loop,
            services.threads,
            code.hooks,
            settings,
            changes=None if services.is_child else self.changes,
            models=CalledModels(services.models, guards),
            rates=RateLimiter(services.rates, guards),
            refused_formats=RefusedFormats(services.results),
            processes=quarantine,
            late_s=lambda: services.loop.late_s,
            keys=keys,
            units=services.units,
            streams=(lambda: services.streams) if settings.has_redis else None,
            check=_unchecked if check is None else check.look,
        )
        self.changes.record = self.attempts.preparation.record
        if isinstance(services.effects, LoopEffects):
            services.effects.ahead.known_reservations = self.attempts.claims.known_reservations


class Upkeep:
    """The work of a process apart from attempts: it sweeps, calls hooks, and watches itself and its neighbours."""

    def __init__(
        self,
        services: Services,
        code: UserCode,
        engine: AttemptEngine,
        keys: OwnKeys,
        neighbours: Neighbours,
        check: SelfCheck | None,
    ) -> None:
        settings, stores, post, lease = services.settings, services.stores, services.post, services.lease
        own, grace_s = settings.worker, settings.agents.cancel_grace_s
        trials = ImportTrials(settings, code.catalog, services.threads)
        parked = ParkedRuns(
            stores,
            engine.coordinator,
            lease,
            code.catalog,
            changes=engine.changes,
            may_load=trials.may_load,
            fits=engine.attempts.preparation.fits,
        )
        withdraw = services.withdraw_stream if settings.has_redis else None
        lost = LostWork(stores, post, engine.coordinator, lease, settings, withdraw)
        unpark = Chore(parked.unpark, UNPARK_EVERY_S)
        waits_s = settings.traces.wait_days * DAY_S
        pruner = Pruner(stores.retention, settings.retention, waits_s=waits_s)
        self.enqueue: Enqueue | None = None
        self._schedules, self._catalog, self._may_load = stores.schedules, code.catalog, trials.may_load
        self._allowed = settings.allowed_imports
        self.sweeper = Sweeper(
            stores,
            lease,
            [unpark, *lost.chores()],
            before=[Chore(neighbours.bury), Chore(keys.look), Chore(services.sample), unpark],
            after=[
                Chore(self._fire_schedules),
                Chore(stores.retention.tally, TALLY_EVERY_S),
                Chore(pruner.prune_in_turn),
                Chore(UnitPruner(stores.units, settings.retention, waits_s=waits_s).prune, UNITS_S / 4),
            ],
            every_s=own.sweep_s,
        )
        self.hook_delivery = HookDelivery(
            stores,
            code.hooks,
            engine.coordinator,
            code.runtime.resolve,
            lease=lease,
            isolation=engine.attempts.isolation,
            max_lost=own.max_lost,
            may_load=trials.may_load,
        )
        self.hook_calls = HookThread(self.hook_delivery, services.threads, engine.hooks_due, every_s=own.sweep_s)
        self.hand_back = HandBack(
            lease, stores.backlog, post, grace_s=min(grace_s, STOP_S / 2) if services.is_child else grace_s
        )
        self.watchdog = Watchdog(
            services.loop,
            services.threads,
            settings,
            services.steps,
            report=services.events.put,
            check=_unchecked if check is None else check.look_fully,
        )

    def _fire_schedules(self) -> None:
        """Fire the schedules that are due, by enqueueing as a client does."""
        due = [] if self.enqueue is None else self._schedules.due(DUE_SCHEDULES)
        if due and self.enqueue is not None:
            from flujo_worker.recovery.schedules import ScheduleFiring

            firing = ScheduleFiring(self._schedules, self._catalog, self._allowed, self._may_load, self.enqueue)
            firing.fire(due)


def _unchecked() -> None:
    """Check nothing: a process that runs one attempt can harm no other attempt."""
