"""The composition root: the one place that names concrete classes. One host per process, made after the fork."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.config.model_guards import first_rows
from flujo_client.contract.envelope import TASK_JOIN, Envelope, JoinSignal
from flujo_client.contract.outcome import Event
from flujo_client.errors import KeyMissing, SerializationError
from flujo_client.plan.plan import Backoff
from flujo_client.redact import hide_fields
from flujo_client.transport.encryption import encrypt_values
from flujo_worker.agents.refused_formats import RefusedFormats
from flujo_worker.attempts.isolation import DeliveryResult
from flujo_worker.attempts.lease import Lease
from flujo_worker.attempts.perform import Attempts
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.threads import Threads
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.coordinator.failure_log import log_failures
from flujo_worker.engine.dispatch import RedisPublisher, Sender
from flujo_worker.engine.engine import Engine, LoopEffects
from flujo_worker.errors import RowLocked, WireError
from flujo_worker.guards.cells import MODELS, RATES, RedisCells
from flujo_worker.guards.live import LiveGuards
from flujo_worker.guards.models import CalledModels
from flujo_worker.guards.rates import RateLimiter
from flujo_worker.guards.result_cache import RedisCache
from flujo_worker.liveness.heartbeat import Heartbeat
from flujo_worker.liveness.neighbours import Neighbours, machine
from flujo_worker.liveness.self_check import SelfCheck
from flujo_worker.liveness.watchdog import Steps, Watchdog
from flujo_worker.observe.step_output import capture_step_output, release_step_output
from flujo_worker.observe.system import SystemEvents
from flujo_worker.own_keys import OwnKeys
from flujo_worker.ports import Member, PendingHookCall, Room
from flujo_worker.recovery.admission import AdmissionThread
from flujo_worker.recovery.hand_back import HandBack, become_hand_back
from flujo_worker.recovery.health import HealthCheck
from flujo_worker.recovery.hook_delivery import HookDelivery, HookThread
from flujo_worker.recovery.import_trials import ImportTrials
from flujo_worker.recovery.quarantine import STOP_S, Quarantine
from flujo_worker.recovery.retention import Pruner
from flujo_worker.recovery.sweeper import Sweeper
from flujo_worker.runtime.effects import BlockingEffects, Effects
from flujo_worker.store.migrate import START_PATIENCE_S, require_current
from flujo_worker.store.postgres.groups import GroupedLedger
from flujo_worker.store.postgres.store import PostgresStore
from flujo_worker.user_code.evaluator import Evaluator, user_code_runtime
from flujo_worker.user_code.hooks import HookCaller

if TYPE_CHECKING:
    from celery import Celery

    from flujo_worker.liveness.throttle import PoolSlots

logger = logging.getLogger(__name__)
MERGING_S = 10.0
"""Seconds that attempts whose code has ended may take to merge, before others begin them again."""


class Host:
    """The engine in one worker process.

    Args:
        settings: with database and broker set.
        app: the app with the tasks.
        is_own_app: whether it is Flujo's, and not one that pipelines were attached to.
        is_child: whether a worker process started this one for one attempt, and so detects its death.
        on_loop: whether attempts are coroutines on a separate event loop; otherwise each runs in the thread that delivers it.
        slots: the number of attempts that the process runs at once; `worker.concurrency` when None.
        consumes: the queues it takes messages from.

    Attributes:
        steps: the reactions when code blocks the event loop, or too many calls do not end.
        effects: the waiting of attempts for services and threads.
        engine: the event loop of attempts, if there is one.
        keys: which keys this process lacks.
    """

    def __init__(
        self,
        settings: Settings,
        app: Celery,
        *,
        is_own_app: bool = True,
        is_child: bool = False,
        on_loop: bool = False,
        slots: int | None = None,
        consumes: Sequence[str] = (),
    ) -> None:
        database = settings.database()
        require_current(database, patience_s=START_PATIENCE_S)
        encrypt_values(settings)
        own, place = settings.worker, "" if is_child else machine()
        self._stopping, self._handing_back = threading.Event(), threading.Lock()
        self._store = PostgresStore(
            database, pool_max=own.pool_max, prepare=settings.prepare_statements, stopping=self._stopping
        )
        self._post = RedisPublisher(settings, app)
        self._sender = Sender(self._post, self._store)
        self._loop, self._threads, self._results = Loop(), Threads("flujo-user"), RedisCache(settings)
        self._build = own.build
        catalog = CodeRegistry(settings.allowed_imports, self._store.plan, self._note_plan)
        bench = user_code_runtime(settings, self._loop, self._threads, self._results)
        hooks = HookCaller(catalog, bench, strict=settings.hooks.strict)
        hooks_due = threading.Event()
        self.engine = Engine() if on_loop else None
        self.effects = self._effects_on(self.engine, settings)
        coordinator = Coordinator(
            self._store,
            self._sender.send,
            Evaluator(self._store, catalog, bench),
            backoff=Backoff(**settings.retry.model_dump()),
            send_later=self._sender.send_later,
            inline=settings.limits.snapshot_inline_bytes,
            control_queue=own.control_queue,
            on_hooks_due=hooks_due.set,
            on_merged=log_failures,
            on_gated_end=lambda run: self._admission.ended(run),  # noqa: PLW0108 - it is made later
            effects=self.effects,
        )
        self._admission = AdmissionThread(coordinator.admit)
        self._heartbeat = Heartbeat(own.heartbeat_file)
        self._check = SelfCheck(self._is_running, self._end_broken)
        self._environment = ConfigManager().child_environment(settings)
        self._slots, self._consumes = slots or own.concurrency, list(consumes)
        member = _this_process(0 if is_child else self._slots, place, own.build, self._consumes)
        self._lease = Lease(
            self._store,
            member,
            lease_s=own.lease_s,
            renew_s=own.renew_s,
            on_renewed=self._heartbeat.beat,
            on_stop_request=lambda: self.steps.stop(),  # noqa: PLW0108 - the code that runs the process replaces it
        )
        self._loop.settle = self._lease.settle
        changes = CodeChanges(
            self._store,
            self._sender.send,
            on_change=settings.runs.on_change,
            control_queue=own.control_queue,
            build=own.build,
            worker=lambda: self._lease.worker,
            record=lambda reference: self._attempts.preparation.record(reference),  # noqa: PLW0108 - it is made later
        )
        grace_s = settings.agents.cancel_grace_s
        self._hand_back = HandBack(
            self._lease, self._store, self._post, grace_s=min(grace_s, STOP_S / 2) if is_child else grace_s
        )
        self._models, self._rates = RedisCells(MODELS, settings), RedisCells(RATES, settings)
        self._file_settings = [] if is_child else first_rows(settings)
        self._live_guards = LiveGuards(self._store.guard_rows, self._file_settings)
        self._quarantine = Quarantine(settings, self._store, app, is_own_app=is_own_app)
        self.keys = OwnKeys(
            settings,
            self._withdraw,
            lambda event: self._system.put(event),  # noqa: PLW0108 - it is made later
        )
        self._attempts = Attempts(
            self._store,
            coordinator,
            self._lease,
            self._loop,
            self._threads,
            hooks,
            settings,
            changes=None if is_child else changes,
            models=CalledModels(self._models, self._live_guards),
            rates=RateLimiter(self._rates, self._live_guards),
            refused_formats=RefusedFormats(self._results),
            processes=self._quarantine,
            late_s=lambda: self._loop.late_s,
            keys=self.keys,
            check=_unchecked if is_child else self._check.look,
        )
        if isinstance(self.effects, LoopEffects):
            self.effects.known_reservations = self._attempts.claims.known_reservations
        trials = ImportTrials(settings, catalog, self._threads)
        self._neighbours = Neighbours(self._store, member.host, place, max_lost=own.max_lost)
        self._sweeper = Sweeper(
            self._store,
            self._post,
            coordinator,
            catalog,
            changes=changes,
            worker=lambda: self._lease.worker,
            judge=self._lease.judge,
            every_s=own.sweep_s,
            max_lost=own.max_lost,
            control_queue=own.control_queue,
            keep_events_days=settings.events.keep_days or None,
            fits=self._attempts.preparation.fits,
            may_load=trials.may_load,
            look_around=self._look_around,
            prune=Pruner(self._store, settings.retention).prune_in_turn,
        )
        self._hook_delivery = HookDelivery(
            self._store,
            hooks,
            coordinator,
            bench.resolve,
            worker=lambda: self._lease.worker,
            may_judge=self._lease.may_judge,
            isolation=self._attempts.isolation,
            max_lost=own.max_lost,
            may_load=trials.may_load,
        )
        self._hook_calls = HookThread(
            self._hook_delivery, self._threads, hooks_due, every_s=own.sweep_s, at_once=own.pool_max
        )
        self.steps = Steps(hand_back=self._begin_hand_back)
        self._system = SystemEvents(self._store, lambda: self._lease.worker)
        self._watchdog = Watchdog(
            self._loop,
            self._threads,
            settings,
            self.steps,
            report=self._system.put,
            check=_unchecked if is_child else self._check.look_fully,
        )
        hide_fields(settings.log.redact)
        self._health = HealthCheck(self._store, self._post, settings)

    @property
    def worker(self) -> str:
        """Return the id of this process's present incarnation."""
        return self._lease.worker

    @property
    def silent_s(self) -> float:
        """Return the seconds since the lease was last renewed."""
        return self._lease.silent_s

    def throttle(self, slots: PoolSlots) -> None:
        """Adapt the slots of this process's pool to how late its event loop is, from now on."""
        self._watchdog.throttle.slots = slots

    def _note_plan(self, fingerprint: str) -> None:
        self._store.note_plan(self._lease.worker, fingerprint, self._build)

    def begin(self) -> None:
        """Take a lease, and begin to mark what is sent: all that an attempt needs."""
        capture_step_output()
        self._store.open()
        if self._file_settings:
            self._write_file_settings()
        self._lease.start()
        self._watchdog.start()
        self._sender.start()
        self._admission.start()

    def _write_file_settings(self) -> None:
        try:
            self._store.write_file_settings(self._file_settings)
        except RowLocked as error:
            logger.warning("changed settings of models count once a worker is started that can write them: %s", error)

    def start(self) -> None:
        """Begin, and do what else every worker does: sweep, call hooks, announce itself."""
        self.begin()
        self._sweeper.start()
        self._hook_calls.start()
        self._system.start()
        started = {"build": _build(), "slots": self._slots, "queues": self._consumes}
        self._system.put(Event("worker.started", started, at=time.time()))
        logger.info("worker %s is up", self._lease.worker)
        self.keys.check()

    def stop(self) -> None:
        """Release the lease and all resources, once a hand-back that has begun is done."""
        with self._handing_back:
            pass
        self._system.put(Event("worker.stopped", at=time.time()))
        self._system.stop()
        self._quarantine.stop()
        self._stopping.set()
        self._sweeper.stop()
        self._hook_calls.stop()
        self.end()

    def withdraw_by(self, withdraw: Callable[[], object]) -> None:
        """Take no more messages by calling this, as soon as this process lacks a key: at once if it does already."""
        self.steps.withdraw = withdraw
        if self.keys.is_lacking:
            withdraw()

    def _withdraw(self) -> None:
        """Leave all work to others: what this process cannot read it cannot judge, and what it signs wrongly they refuse."""
        self._post.is_muted = self.keys.signs_wrongly
        self._sweeper.retire()
        self._hook_calls.retire()
        self.steps.withdraw()

    def _look_around(self) -> None:
        self._neighbours.bury()
        self.keys.look()

    def announce_stop(self) -> None:
        """Let operators see that this process takes no more work, without waiting."""
        self._lease.is_asked_to_stop = True
        self._threads.submit(self._store.announce_stop, self._lease.worker)

    def hand_back(self, at_least_s: float = 0.0) -> None:
        """Interrupt what is worked on and have other workers begin it again, at once. To be called before `stop`."""
        with self._handing_back:
            self._threads.submit(self._quarantine.stop)
            self._hand_back.run(at_least_s)
            if self.engine is not None:
                self.engine.drop()

    def _begin_hand_back(self) -> None:
        self._lease.interrupt()
        # No code of users is left to wait for; what still merges is above all the failure of the attempt that blocks the loop.
        threading.Thread(target=self.hand_back, args=(MERGING_S,), name="flujo-hand-back", daemon=True).start()

    def _is_running(self) -> bool:
        return self._loop.is_running and (self.engine is None or self.engine.is_running)

    def _end_broken(self, reason: str) -> None:
        logger.error("this process is broken, and hands back what it works on: %s", reason)
        become_hand_back(self._lease.worker, self._lease.keys, self._environment)

    def give_postgres_up(self) -> None:
        """Fail what waits for a Postgres that is away."""
        self._stopping.set()

    def release(self) -> None:
        """Release the lease; what is worked on is free at once."""
        self._stopping.set()
        self._lease.stop()

    def end(self) -> None:
        """Undo what `begin` did, without waiting for a Postgres that is away."""
        self._stopping.set()
        release_step_output()
        self._admission.stop()
        self._sender.stop()
        self._lease.stop()
        self._heartbeat.end()
        self._watchdog.stop()
        if self.engine is not None:
            self.engine.close(self._groups.close())
        self._loop.close()
        self._threads.shutdown()
        self._results.close()
        self._post.close()
        self._models.close()
        self._rates.close()
        self._store.close()

    def attempt(self, wire: Mapping[str, Any], *, task_id: str) -> DeliveryResult:
        """Carry out an attempt, as `carry_out` does, and wait for its end; return the result."""
        return self.effects.run(self._attempt(wire, task_id=task_id))

    def join(self, wire: Mapping[str, Any], *, task_id: str) -> DeliveryResult:
        """Carry out a join, as `carry_out` does, and wait for its end; return the result."""
        return self.effects.run(self._join(wire, task_id=task_id))

    async def carry_out(self, task: str, wire: Mapping[str, Any], *, task_id: str) -> bool:
        """Perform the work of a message: an attempt, the start of a scope, or the join of a fan-out whose branches are all closed.

        Returns:
            whether the delivery counts as a part of its chord: it closed its branch and left the lane empty.

        Raises:
            WireError: the message is not one of that task, or was put under another task id; it is dropped and logged.
        """
        carry_out = self._join if task == TASK_JOIN else self._attempt
        return (await carry_out(wire, task_id=task_id)).counts

    async def perform(self, envelope: Envelope) -> bool:
        """Do what `carry_out` does, for an attempt whose message this process has written."""
        return (await self._attempts.deliver(envelope)).counts

    async def _attempt(self, wire: Mapping[str, Any], *, task_id: str) -> DeliveryResult:
        try:
            envelope = Envelope.from_wire(wire)
        except KeyMissing as error:
            return await self._attempts.leave_encrypted(task_id, error)
        except SerializationError as error:
            raise WireError(f"message {task_id} refused: {error.message}", cause=error) from error
        if envelope.key != task_id or envelope.kind == "join":  # joins come as join signals
            raise WireError(f"message {task_id} refused: it contains attempt {envelope.key}")
        return await self._attempts.deliver(envelope)

    def perform_in(self, room: Room, envelope: Envelope) -> DeliveryResult:
        """Perform an attempt in this process, which was started for it."""
        return self._attempts.perform_in(room, envelope)

    def call_hooks(self, call: PendingHookCall) -> None:
        """Call hooks in this process, which was started for it."""
        self._hook_delivery.call_hooks(call)

    async def _join(self, wire: Mapping[str, Any], *, task_id: str) -> DeliveryResult:
        try:
            join_signal = JoinSignal.from_wire(wire)
        except SerializationError as error:
            raise WireError(f"message {task_id} refused: {error.message}", cause=error) from error
        if join_signal.key != task_id:
            raise WireError(f"message {task_id} refused: it contains the join signal {join_signal.key}")
        return await self._attempts.signal_join(join_signal.run, join_signal.address)

    def _effects_on(self, engine: Engine | None, settings: Settings) -> Effects:
        if engine is None:
            return BlockingEffects(self._store, self._sender.send)
        self._groups = GroupedLedger(
            settings.database(), prepare=settings.prepare_statements, is_alone=engine.carries_one
        )
        engine.run(self._groups.open())
        at_once = settings.worker.pool_max
        return LoopEffects(engine, self._store, self._groups, self._threads, self._sender, at_once=at_once)

    def sweep(self) -> None:
        """Sweep now, whichever worker's turn it is."""
        self._sweeper.sweep()

    def health_check(self) -> None:
        """Make and store this slot's health report, unless that is done."""
        self._health.check()


def _unchecked() -> None:
    """Check nothing: a process that runs one attempt harms no other one."""


def _this_process(slots: int, place: str, code_build: str | None, queues: Sequence[str]) -> Member:
    host = socket.gethostname()
    return Member(
        f"{host}-{os.getpid()}-{place or 'elsewhere'}-{secrets.token_hex(3)}",
        host,
        os.getpid(),
        _build(),
        slots,
        code_build,
        tuple(queues) or None,
    )


def _build() -> str:
    try:
        return version("flujo-worker")
    except PackageNotFoundError:
        return "unknown"
