"""The parts of a worker process, each built of its services and the parts before it: users' code, attempts, upkeep."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from flujo_client.config.model_guards import first_rows
from flujo_client.plan.plan import Backoff
from flujo_worker.agents.refused_formats import RefusedFormats
from flujo_worker.attempts.perform import Attempts
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.domain.retention import DAY_S
from flujo_worker.engine.engine import LoopEffects
from flujo_worker.engine.services import Services
from flujo_worker.guards.live import LiveGuards
from flujo_worker.guards.models import CalledModels
from flujo_worker.guards.rates import RateLimiter
from flujo_worker.liveness.neighbours import Neighbours
from flujo_worker.liveness.self_check import SelfCheck
from flujo_worker.liveness.watchdog import Watchdog
from flujo_worker.own_keys import OwnKeys
from flujo_worker.recovery.admission import AdmissionThread
from flujo_worker.recovery.child_processes import ChildProcesses
from flujo_worker.recovery.hand_back import HandBack
from flujo_worker.recovery.hook_delivery import HookDelivery, HookThread
from flujo_worker.recovery.import_trials import ImportTrials
from flujo_worker.recovery.lost_work import UNPARK_EVERY_S, LostWork, ParkedRuns
from flujo_worker.recovery.quarantine import STOP_S, Quarantine
from flujo_worker.recovery.retention import TALLY_EVERY_S, UNITS_S, Pruner, UnitPruner
from flujo_worker.recovery.sweeper import Chore, Sweeper
from flujo_worker.user_code.evaluator import Evaluator, user_code_runtime
from flujo_worker.user_code.hooks import HookCaller

if TYPE_CHECKING:
    from flujo_worker.recovery.schedules import Enqueue

DUE_SCHEDULES = 100
"""How many schedules one sweep fires at most."""


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
        self.hooks_due = threading.Event()
        self.admission = AdmissionThread(lambda *asked: self.coordinator.admit(*asked))  # noqa: PLW0108 - which is made below
        self.coordinator = Coordinator(
            stores,
            sender.send,
            code.evaluator,
            backoff=Backoff(**settings.retry.model_dump()),
            send_later=sender.send_later,
            inline=settings.limits.snapshot_inline_bytes,
            control_queue=settings.worker.control_queue,
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
            units=None if services.engine is None else services.units,
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
        children: ChildProcesses,
    ) -> None:
        settings, stores, post, lease = services.settings, services.stores, services.post, services.lease
        own, grace_s = settings.worker, settings.agents.cancel_grace_s
        trials = ImportTrials(children, code.catalog, services.threads)
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
        unpark = Chore(partial(_unpark, parked, trials), UNPARK_EVERY_S)
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
                Chore(UnitPruner(stores.retention, settings.retention, waits_s=waits_s).prune, UNITS_S / 4),
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
        due = [] if self.enqueue is None else self._schedules.due(DUE_SCHEDULES)
        if due and self.enqueue is not None:
            from flujo_worker.recovery.schedules import ScheduleFiring

            firing = ScheduleFiring(self._schedules, self._catalog, self._allowed, self._may_load, self.enqueue)
            firing.fire(due)


def _unpark(parked: ParkedRuns, trials: ImportTrials) -> bool:
    """Let parked runs continue. Return False if a trial was running, because with its result others may continue."""
    have_ended = trials.have_ended()
    parked.unpark()
    return have_ended and trials.have_ended()


def _unchecked() -> None:
    """Check nothing: a process that runs one attempt can harm no other attempt."""
