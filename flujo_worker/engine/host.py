"""The composition root: a worker's engine in one process. One host per process, made after the fork."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.envelope import TASK_JOIN, Envelope, JoinSignal
from flujo_client.contract.hooks import PostRunPayload
from flujo_client.contract.outcome import Event
from flujo_client.errors import KeyMissing, SerializationError
from flujo_client.redact import hide_fields
from flujo_client.transport.encryption import encrypt_values
from flujo_client.transport.messages import MessageWriter
from flujo_worker.attempts.isolation import DeliveryResult
from flujo_worker.concurrency.call_context import waiting_for_locks
from flujo_worker.engine.parts import AttemptEngine, Upkeep, UserCode
from flujo_worker.engine.services import Services
from flujo_worker.errors import RowLocked, WireError
from flujo_worker.liveness.neighbours import Neighbours, machine
from flujo_worker.liveness.self_check import SelfCheck
from flujo_worker.liveness.watchdog import PoolSlots, Steps
from flujo_worker.observe.log import capture_step_output, release_step_output
from flujo_worker.own_keys import OwnKeys
from flujo_worker.ports import Member, PendingHookCall, Room
from flujo_worker.recovery.child_processes import ChildProcesses
from flujo_worker.recovery.hand_back import become_hand_back
from flujo_worker.recovery.quarantine import Quarantine
from flujo_worker.store.migrate import START_PATIENCE_S, require_current
from flujo_worker.store.postgres.stop_requests import StopRequests

if TYPE_CHECKING:
    from celery import Celery

    from flujo_worker.observe.metrics import ProcessMetrics
    from flujo_worker.recovery.schedules import Enqueue
    from flujo_worker.traces.exporter import Exporter

logger = logging.getLogger(__name__)
MERGING_S = 10.0
"""Seconds that attempts whose code has ended may take to merge, before others begin them again."""


class Host:
    """The engine in one worker process.

    Args:
        settings: with database and broker set.
        app: the app with the tasks.
        is_own_app: whether the app is Flujo's own; otherwise pipelines were attached to it.
        is_child: whether a worker process started this one for one attempt, and so detects its death.
        on_loop: whether attempts are coroutines on a separate event loop; otherwise each runs in the thread that delivers it.
        slots: the number of attempts that the process runs at once; `worker.concurrency` when None.
        consumes: the queues it takes messages from.

    Attributes:
        steps: the reactions when code blocks the event loop, or too many calls do not end.
        effects: the waiting of attempts for services and threads.
        engine: the event loop of attempts, if there is one.
        keys: which keys this process lacks.
        execute: executes a command of Redis on the loop, where results are; None if that is not the broker.
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
        require_current(settings.database(), patience_s=START_PATIENCE_S)
        encrypt_values(settings)
        hide_fields(settings.log.redact)
        place, self._handing_back = "" if is_child else machine(), threading.Lock()
        self._environment = ConfigManager().child_environment(settings)
        self._slots, self._consumes = slots or settings.worker.concurrency, list(consumes)
        member = _this_process(0 if is_child else self._slots, place, settings.worker.build, self._consumes)
        self.steps = Steps(hand_back=self._begin_hand_back)
        self._services = services = Services(settings, app, member, self.steps, on_loop=on_loop, is_child=is_child)
        children = ChildProcesses(settings)
        self._quarantine = Quarantine(settings, services.stores, app, children, is_own_app=is_own_app)
        self.keys = OwnKeys(settings, self._withdraw, services.events.put)
        check = None if is_child else SelfCheck(self._is_running, self._end_broken)
        code = UserCode(services)
        self._performing = AttemptEngine(services, code, self._quarantine, self.keys, check)
        self._attempts = self._performing.attempts
        neighbours = Neighbours(services.stores.leases, member.host, place, max_lost=settings.worker.max_lost)
        self._upkeep = Upkeep(services, code, self._performing, self.keys, neighbours, check, children)
        self._traces = _exporter(services)
        self.engine, self.effects = services.engine, services.effects
        self.part_of, self.execute = MessageWriter(settings).part_of, services.execute

    @property
    def worker(self) -> str:
        """Return the id of this process's present incarnation."""
        return self._services.lease.worker

    @property
    def silent_s(self) -> float:
        """Return the seconds since the lease was last renewed."""
        return self._services.lease.silent_s

    def measure(self, metrics: ProcessMetrics) -> None:
        """Count what this process does from now on."""
        self._services.metrics = metrics
        logger.info("metrics are at %s", metrics.address)

    def throttle(self, slots: PoolSlots) -> None:
        """Adapt the slots of this process's pool to how late its event loop is, from now on."""
        self._upkeep.watchdog.throttle.slots = slots

    def begin(self) -> None:
        """Start everything that an attempt needs: the stores, the lease, the sender."""
        capture_step_output()
        self._services.stores.open()
        if self._performing.file_settings:
            self._write_file_settings()
        self._services.lease.start()
        self._upkeep.watchdog.start()
        self._services.sender.start()
        self._performing.admission.start()

    def _write_file_settings(self) -> None:
        try:
            self._services.stores.limits.write_file_settings(self._performing.file_settings)
        except RowLocked as error:
            logger.warning("changed settings of models count once a worker is started that can write them: %s", error)

    def start(self) -> None:
        """Begin; also sweep, call hooks, and announce this worker."""
        self.begin()
        self._upkeep.sweeper.start()
        self._upkeep.hook_calls.start()
        if self._traces is not None:
            self._traces.start()
        self._services.events.start()
        started = {"build": _build(), "slots": self._slots, "queues": self._consumes}
        self._services.events.put(Event("worker.started", started, at=time.time()))
        logger.info("worker %s is up", self._services.lease.worker)
        self.keys.check()

    def stop(self) -> None:
        """Release the lease and all resources, after any hand-back that is under way."""
        with self._handing_back:
            pass
        self._services.events.put(Event("worker.stopped", at=time.time()))
        self._services.events.stop()
        self._quarantine.stop()
        self._services.stopping.set()
        self._upkeep.sweeper.stop()
        self._upkeep.hook_calls.stop()
        if self._traces is not None:
            self._traces.stop()
        self.end()

    def end_tasks_by(self, end_task: Callable[[PostRunPayload], None]) -> None:
        """Deliver the ends of runs that Celery tasks wait for by calling this."""
        self._upkeep.hook_delivery.end_task = end_task

    def fire_by(self, enqueue: Enqueue) -> None:
        """Fire schedules by calling this."""
        self._upkeep.enqueue = enqueue

    def withdraw_by(self, withdraw: Callable[[], object]) -> None:
        """Call this to take no more messages, once this process lacks a key."""
        self.steps.withdraw = withdraw
        if self.keys.is_lacking:
            withdraw()

    def _withdraw(self) -> None:
        """Leave all work to others: without a key, this process cannot read their values, or they refuse its messages."""
        self._services.post.is_muted = self.keys.signs_wrongly
        self._upkeep.sweeper.retire()
        self._upkeep.hook_calls.retire()
        self.steps.withdraw()

    def announce_stop(self) -> None:
        """Show operators, without waiting, that this process takes no more work."""
        self._services.lease.leave()
        stop_requests = StopRequests(self._services.stores.pool)
        self._services.threads.submit(stop_requests.request, [self._services.lease.worker])

    def hand_back(self, at_least_s: float = 0.0) -> None:
        """Interrupt all attempts, and let other workers begin them again at once. To be called before `stop`."""
        with self._handing_back:
            self._services.threads.submit(self._quarantine.stop)
            self._upkeep.hand_back.run(at_least_s)
            if self.engine is not None:
                self.engine.drop()

    def _begin_hand_back(self) -> None:
        loop = self._services.loop
        self._services.lease.interrupt(is_broken=not loop.is_blocked_by_call and not loop.is_starved)
        # Do not wait for users' code; mainly the failure of the attempt that blocks the loop still has to be merged.
        threading.Thread(target=self.hand_back, args=(MERGING_S,), name="flujo-hand-back", daemon=True).start()

    def _is_running(self) -> bool:
        return self._services.loop.is_running and (self.engine is None or self.engine.is_running)

    def _end_broken(self, reason: str) -> None:
        logger.error("this process is broken, and hands back what it works on: %s", reason)
        become_hand_back(self._services.lease.worker, self._services.lease.keys, self._environment)

    def give_postgres_up(self) -> None:
        """Fail what waits for a Postgres that is away."""
        self._services.stopping.set()

    def release(self) -> None:
        """Release the lease, so that others may take this process's attempts at once."""
        self._services.stopping.set()
        self._services.lease.stop()

    def end(self) -> None:
        """Undo what `begin` did, without waiting for a Postgres that is away."""
        self._services.stopping.set()
        release_step_output()
        self._performing.admission.stop()
        self._services.sender.stop()
        self._services.lease.stop()
        self._services.heartbeat.end()
        self._upkeep.watchdog.stop()
        self._services.close()

    def deliver(self, task: str, wire: Mapping[str, Any], *, task_id: str) -> DeliveryResult:
        """Do what `carry_out` does, and wait for its end; return the result."""
        with waiting_for_locks():
            return self.effects.run(self.carry_out(task, wire, task_id=task_id))

    async def perform(self, envelope: Envelope) -> DeliveryResult:
        """Do what `carry_out` does, for an attempt whose message this process has written."""
        return await self._attempts.deliver(envelope)

    async def carry_out(self, task: str, wire: Mapping[str, Any], *, task_id: str) -> DeliveryResult:
        """Perform the work of a message: an attempt, the start of a scope, or the join of a fan-out whose branches are all closed.

        Raises WireError: the message is not one of that task, or was put under another task id; it is dropped and logged.
        """
        if task == TASK_JOIN:
            return await self._join(wire, task_id=task_id)
        try:
            envelope = Envelope.from_wire(wire)
        except KeyMissing as error:
            return await self._attempts.elsewhere.leave_message(task_id, error)
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
        self._upkeep.hook_delivery.call_hooks(call)

    async def _join(self, wire: Mapping[str, Any], *, task_id: str) -> DeliveryResult:
        try:
            join_signal = JoinSignal.from_wire(wire)
        except SerializationError as error:
            raise WireError(f"message {task_id} refused: {error.message}", cause=error) from error
        if join_signal.key != task_id:
            raise WireError(f"message {task_id} refused: it contains the join signal {join_signal.key}")
        return await self._attempts.signal_join(join_signal.run, join_signal.address)

    def sweep(self) -> None:
        self._upkeep.sweeper.sweep()

    def health_check(self) -> None:
        """Make and store this slot's health report, unless that is done."""
        from flujo_worker.recovery.health import HealthCheck
        from flujo_worker.store.postgres.health import HealthInPostgres
        from flujo_worker.store.postgres.pool import RetryingPool

        services, settings = self._services, self._services.settings
        pool = RetryingPool(
            settings.database(), pool_max=1, prepare=settings.prepare_statements, stopping=services.stopping
        )
        with closing(pool.open()):  # a connection of its own: it takes long, and the lease must not wait for it
            HealthCheck(HealthInPostgres(pool), services.post, settings).check()


def _exporter(services: Services) -> Exporter | None:
    """Return what exports traces, if a collector is named; then attempts run below their spans."""
    variables = ConfigManager().opentelemetry()
    if not variables:
        return None
    from flujo_worker.traces.exporter import exporter_of

    return exporter_of(services.stores.exports, services.settings.traces, variables, services.worker)


def _this_process(slots: int, place: str, code_build: str | None, queues: Sequence[str]) -> Member:
    host, pid = socket.gethostname(), os.getpid()
    own_id = f"{host}-{pid}-{place or 'elsewhere'}-{secrets.token_hex(3)}"
    return Member(own_id, host, pid, _build(), slots, code_build, tuple(queues) or None)


def _build() -> str:
    try:
        return version("flujo-worker")
    except PackageNotFoundError:
        return "unknown"
