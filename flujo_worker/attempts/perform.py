"""Perform an attempt, stage by stage: one message in, one disposition out; expected errors are not raised. `attempt.py` draws the stages.

A start or a join passes the same stages, with nothing to perform: only what follows is decided.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from flujo_client.address import AttemptKey
from flujo_client.config.manager import Settings
from flujo_client.config.run_settings import RunSettings, Streams, settings_of
from flujo_client.contract.approval import make_token
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import NO_USAGE, Outcome, Usage
from flujo_client.errors import KeyMissing
from flujo_worker import failpoints
from flujo_worker.attempts.admission import Admissions
from flujo_worker.attempts.attempt import LAST, NEXT, Stage, StagedAttempt
from flujo_worker.attempts.budget import emit_reservations
from flujo_worker.attempts.claim import ClaimParameters, Claims, performs_step
from flujo_worker.attempts.code import PipelineLoading, Preparation
from flujo_worker.attempts.elsewhere import Elsewhere
from flujo_worker.attempts.gates import LimitRefusal
from flujo_worker.attempts.isolation import DeliveryResult, FailureText, Isolation, Processes, isolated
from flujo_worker.attempts.lease import ActiveAttempt, Lease
from flujo_worker.attempts.needs import Needs
from flujo_worker.attempts.outcome import Outcomes, failed
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeMismatch, lack_in, put_bounded
from flujo_worker.concurrency.call_context import waiting_for_locks
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.coordinator.coordinator import ConcludeResult, Coordinator
from flujo_worker.domain.values import AttemptReport
from flujo_worker.errors import DispatchError, StoreError, Unreadable, WireError
from flujo_worker.guards.models import CalledModels
from flujo_worker.guards.rates import RateLimiter
from flujo_worker.observe.log import filling_of
from flujo_worker.own_keys import OwnKeys
from flujo_worker.ports import Claim, Room, Stores
from flujo_worker.runtime.attempt_run import AttemptRun, AttemptStream, CallSettings, RefusalMemory
from flujo_worker.runtime.effects import note_lock
from flujo_worker.runtime.faults import fault_of
from flujo_worker.user_code.hooks import HookCaller

if TYPE_CHECKING:
    from flujo_worker.durable.journal import Journal
    from flujo_worker.durable.ledger import StoredUnits
    from flujo_worker.streams.writers import StreamWriters

logger = logging.getLogger(__name__)

LOCKED_S: Final = 0.5, 5.0
"""The minimum and the maximum of seconds after which a message is sent again whose rows somebody else holds."""
FAILURES: Final = ("failure", "lost", "limit")
"""The outcomes that Celery's listeners see as failures: a question to a person is not among them."""
BUSY: Final = DeliveryResult("busy")


class Attempts:
    """Performs attempts in this process.

    Args:
        stores: where attempts are claimed.
        coordinator: receives their outcomes.
        lease: this process's right to work.
        loop: the process's event loop.
        threads: where sync agents run.
        hooks: calls the pipelines' hooks, and has the live pipelines of this process.
        settings: limits, timeouts and allowed imports.
        changes: moves runs to the code that is here; None: one whose code has changed is parked.
        models: the state of the models that attempts call; None: none is asked.
        rates: the limits of these models; None: none has any.
        refused_formats: which models refused structured output; None: that is not remembered.
        processes: where attempts run that have lost their process before; None: such an attempt runs alone in this one.
        keys: which keys this process lacks; None: what it cannot decrypt was changed.
        units: returns where the units of durable attempts are written; None: the store, in threads.
        streams: returns what writes the streams of runs; None: nothing is streamed.
        check: ends this process if an attempt has broken it.
        late_s: returns for how many seconds the event loop has been late; a constant where attempts are not to begin again for that.
    """

    def __init__(  # noqa: PLR0913 - the composition root gives it all it needs, once
        self,
        stores: Stores,
        coordinator: Coordinator,
        lease: Lease,
        loop: Loop,
        threads: Executor,
        hooks: HookCaller,
        settings: Settings,
        *,
        changes: CodeChanges | None = None,
        models: CalledModels | None,
        rates: RateLimiter | None = None,
        refused_formats: RefusalMemory | None = None,
        processes: Processes | None = None,
        keys: OwnKeys | None = None,
        units: Callable[[], StoredUnits] | None = None,
        streams: Callable[[], StreamWriters] | None = None,
        late_s: Callable[[], float] = lambda: 0.0,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._units, self._streams = units or partial(_stored_units, stores), streams
        self._stores, self._coordinator, self._lease, self._loop = stores, coordinator, lease, loop
        self.isolation, self.catalog, self._late_s = Isolation(stores.attempts, processes), hooks.catalog, late_s
        self._effects = effects = coordinator.effects
        self.preparation = Preparation(stores, hooks, settings, effects)
        self.elsewhere = Elsewhere(stores, lease, self.preparation, effects, changes=changes, keys=keys)
        self._needs = Needs(hooks.catalog)
        self._admissions = Admissions(stores, coordinator, models, rates, hooks.catalog, settings)
        self.loading = PipelineLoading(hooks.catalog, effects)
        self.claims = Claims(stores, lease, self.loading, threads, settings, effects)
        self._outcomes = Outcomes(
            stores,
            lease,
            loop,
            threads,
            hooks,
            settings,
            effects,
            migrations=self.preparation.migrations,
            needs=self._needs,
            check=check,
        )
        self._refused_formats, self._locked_since = refused_formats, dict[str, float]()
        self._keys, self._limits = settings.keys(), settings.limits
        self._own, self._prompts = RunSettings.of(settings), settings.log.prompts
        self._settings: dict[int, tuple[RunSettings, CallSettings]] = {}

    async def deliver(self, envelope: Envelope) -> DeliveryResult:
        """Carry out a message, or refuse the delivery; return which.

        Raises: WireError: the attempt belongs to another pipeline than the message names.
        """
        with waiting_for_locks():
            delivered = await self._carry_out(envelope)
        if delivered.disposition == "mismatched":
            raise WireError(
                f"attempt {envelope.key} does not belong to the pipeline {envelope.ticket.reference!r:.200}"
            )
        return delivered

    async def signal_join(self, run: str, address: str) -> DeliveryResult:
        """Join the fan-out of a join signal if its branches are all closed."""
        with waiting_for_locks():
            envelope = await self._effects.call(self._coordinator.join_if_due, run, address)
        return DeliveryResult("waiting") if envelope is None else await self.deliver(envelope)

    def perform(self, envelope: Envelope) -> DeliveryResult:
        """Carry out a message without waiting for locks, and wait for its end."""
        return self._effects.run(self._carry_out(envelope))

    def perform_in(self, room: Room, envelope: Envelope) -> DeliveryResult:
        """Perform a suspect in this process, which was started for it."""
        held = self._lease.hold(envelope.key)
        if held is None:
            return BUSY
        try:
            with waiting_for_locks():
                return self._effects.run(self._go(StagedAttempt(envelope, held, room)))
        finally:
            self._lease.let_go(held.key)

    async def _carry_out(self, envelope: Envelope) -> DeliveryResult:
        """Take an attempt, and let it go.

        While the event loop is blocked nothing is claimed: a message that waits here for long is sent again, and another worker takes it.
        """
        if not self._loop.answers.is_set():
            await self._effects.together(self._wait_for_loop, None)
        if self._loop.is_given_up:
            return BUSY
        if self.elsewhere.takes_nothing:
            return await self.elsewhere.postpone(envelope.key)
        held = self._lease.hold(envelope.key)
        if held is None:
            return BUSY
        try:
            ended = await self._go_beside_others(StagedAttempt(envelope, held))
            if ended.disposition != "suspect":
                return ended
            alone = self._go(StagedAttempt(envelope, held, "alone"))
            return await self._effects.call(
                self.isolation.perform, envelope, ended.in_company, partial(self._effects.run, alone)
            )
        finally:
            self._lease.let_go(held.key)

    def _wait_for_loop(self, waiting: Sequence[None]) -> Sequence[bool]:
        return [self._loop.answers.wait()] * len(waiting)

    async def _go_beside_others(self, attempt: StagedAttempt) -> DeliveryResult:
        gate = self.isolation.gate
        if not gate.enter_if_free():
            await self._effects.call(gate.enter)
        try:
            return await self._go(attempt)
        finally:
            gate.leave()

    async def _go(self, attempt: StagedAttempt) -> DeliveryResult:
        """Let an attempt pass its stages, once its pipeline is here or it is the one to load it."""
        try:
            if self.catalog.has(attempt.given.ticket.reference):
                return await self._pass(attempt)
            async with self.loading.turn(attempt.given):
                return await self._pass(attempt)
        except (KeyMissing, CodeMismatch) as lack:
            return await self.elsewhere.leave(attempt, lack)
        except Unreadable as error:
            await self._effects.call(self._coordinator.break_off, attempt.given.ticket.run, error, attempt.held.claim)
            return DeliveryResult("unreadable")

    async def _pass(self, attempt: StagedAttempt) -> DeliveryResult:
        """Take an attempt from stage to stage, to its end."""
        try:
            while attempt.stage not in LAST:
                after = await STEPS[attempt.stage](self, attempt)
                assert after in NEXT[attempt.stage], f"{attempt.stage} is not followed by {after}"
                attempt.stage = after
        finally:
            if attempt.stream is not None:
                attempt.end_stream()
            await self._admissions.release(attempt)
        return attempt.result

    # From each stage to the next one.

    async def _claim(self, attempt: StagedAttempt) -> Stage:
        envelope, held, room = attempt.given, attempt.held, attempt.room
        if envelope.ticket.limits is not None and not self.catalog.has(envelope.ticket.reference):
            claim = await self.claims.import_claimed(envelope, held, room)
            if claim.refusal is not None:
                return await self._refuse(attempt, claim)
        wanted = await self.claims.wanted(envelope)
        claim = await self.claims.claim(envelope, held, wanted.to_reserve, room)
        if claim.refusal is not None:
            return await self._refuse(attempt, claim)
        failpoints.hit("after_claim")
        self._locked_since.pop(held.key, None)
        if room != "shared":
            event = isolated(room, self._lease.worker)
            await self._effects.call(self._stores.records.note, envelope.ticket.run, [event], key=held.key)
        attempt.started = time.monotonic()
        attempt.reply, attempt.calls, attempt.whole = wanted.reply, wanted.calls, wanted.inline
        unperformed = _unperformed(claim, wanted, attempt.started)
        if unperformed is None:
            return "claimed"
        attempt.outcome = unperformed
        return "performed"

    async def _refuse(self, attempt: StagedAttempt, claim: Claim) -> Stage:
        envelope, key, call = attempt.given, attempt.held.key, self._effects.call
        logger.info("attempt %s not claimed: %s", key, claim.refusal)
        if claim.refusal == "locked":
            return attempt.end(await self._put_back(envelope))
        if claim.refusal == "moved":  # its message names the plan that the run used before
            await call(self._stores.attempts.postpone, key, 0.0)
        counts = claim.refusal == "ended" and await call(self._coordinator.counts, envelope)
        return attempt.end(DeliveryResult(claim.refusal or "busy", counts, claim.in_company))

    async def _put_back(self, envelope: Envelope) -> DeliveryResult:
        """Have the message of an attempt sent again whose rows somebody else holds: the later, the longer that lasts."""
        now = time.monotonic()
        if envelope.key not in self._locked_since:
            put_bounded(self._locked_since, envelope.key, now)
            await self._effects.call(note_lock, self._stores, envelope)
        shortest, longest = LOCKED_S
        wait_s = min(max(now - self._locked_since.get(envelope.key, now), shortest), longest)
        self._coordinator.send_later(envelope, wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        return DeliveryResult("waiting")

    async def _load(self, attempt: StagedAttempt) -> Stage:
        if attempt.reply is not None and attempt.reply.answer is None:
            # A copy that came too early: it may be answered by now.
            attempt.reply = await self._effects.call(self.claims.reply, attempt.given)
        attempt.entry = await self.loading.entry(attempt.given)
        await self.preparation.of(attempt)
        attempt.started = time.monotonic()  # importing code takes time that is not the step's
        return "loaded"

    async def _admit(self, attempt: StagedAttempt) -> Stage:
        ticket = attempt.given.ticket
        own = settings_of(ticket.settings, self._own)
        if performs_step(attempt.given, attempt.reply):
            attempt.needs = self._needs.known(attempt.entry, attempt.given)
        try:
            if await self._admissions.holds_back(attempt, own.cost):
                return attempt.end(DeliveryResult("waiting"))
        except LimitRefusal as error:
            attempt.outcome = _bare(error.cause, NO_USAGE, attempt.started)
            return "performed"
        run = AttemptRun(
            attempt.info,
            self._settings_of(own),
            pace=self._admissions.pace_of(attempt),
            refused_formats=self._refused_formats,
            journal=partial(self._journal, attempt.given, attempt.held),  # without the attempt, which has the run
            late_s=self._late_s,
        )
        if own.stream and self._streams is not None and performs_step(attempt.given, attempt.reply):
            attempt.stream = self._stream_of(attempt, own.stream, self._streams())
        attempt.begin(run, worker=self._lease.worker)
        return "admitted"

    def _stream_of(self, attempt: StagedAttempt, wanted: Streams, writers: StreamWriters) -> AttemptStream | None:
        """Return what streams an attempt, if its run or its step asks for that."""
        envelope, entry = attempt.given, attempt.entry
        if wanted == "steps" and not entry.steps[entry.node_of(envelope).path].config.stream:
            return None
        return writers.writer(envelope, attempt.held.fence or 0)

    def _journal(self, envelope: Envelope, held: ActiveAttempt, run: AttemptRun) -> Journal:
        from flujo_worker.durable.journal import Journal

        first = envelope.number if envelope.units_from is None else envelope.units_from
        place, token = f"{envelope.address}:{envelope.step}", partial(self._token, envelope)
        return Journal(run, self._units(), held, place=place, first=first, limits=self._limits, token=token)

    def _token(self, envelope: Envelope) -> str:
        """Return the token of the question that an attempt may end with; without a key to sign it, the question's key."""
        run, number = envelope.ticket.run, envelope.number + 1
        key = str(AttemptKey(run, envelope.address, envelope.step, number, "resume"))
        return make_token(run, key, None, self._keys) or key

    def _settings_of(self, own: RunSettings) -> CallSettings:
        """Return what a run's settings say of calls, made once for all runs with the same."""
        known = self._settings.get(id(own))
        if known is None:
            filling, timeout_s = filling_of(own.template), own.agents.agent_timeout_s
            known = own, CallSettings(own.cost, own.template, self._prompts, timeout_s, filling)
            put_bounded(self._settings, id(own), known)
        return known[1]

    async def _perform(self, attempt: StagedAttempt) -> Stage:
        if attempt.held.reserved:
            attempt.inside(emit_reservations, attempt.calls)
        attempt.emit_preparation()
        outcome = await self._outcome_of(attempt)
        attempt.signalled = attempt.run.signalled
        if attempt.run.calls or attempt.admission is not None:
            await self._admissions.report(attempt)
        if outcome is None and await self._coordinator.is_aborted(attempt.given):
            outcome = Outcome("cancelled", latency_s=time.monotonic() - attempt.started)
        if outcome is None and attempt.held.has_left:
            return attempt.end(await self.elsewhere.hand_back(attempt.held.key))
        if outcome is None:
            return attempt.end(DeliveryResult("cancelled"))
        if outcome.fault is not None and await self.elsewhere.leave_to_other_build(attempt, outcome):
            return attempt.end(DeliveryResult("waiting"))
        attempt.outcome = outcome
        return "performed"

    async def _outcome_of(self, attempt: StagedAttempt) -> Outcome | None:
        """Perform it; it fails if it cannot begin because the rows and the plan do not match."""
        try:
            return await self._outcomes.of(attempt)
        except (StoreError, CodeMismatch, KeyMissing):
            raise
        except Exception as error:
            logger.exception("attempt %s could not be performed", attempt.held.key)
            return _bare(error, NO_USAGE, attempt.started)

    async def _merge(self, attempt: StagedAttempt) -> Stage:
        """Merge; an outcome that Postgres rejects fails its attempt, which would otherwise stay `running` while this process lives."""
        report = attempt.report()
        try:
            concluded = await self._coordinator.merge(report)
        except (StoreError, DispatchError, Unreadable, KeyMissing, CodeMismatch):
            raise
        except Exception as error:
            logger.exception("the outcome of %s could not be merged", attempt.held.key)
            report = replace(report, outcome=_bare(error, report.outcome.usage, attempt.started))
            concluded = await self._merge_failed(report)
        attempt.result = delivered = _delivered(report, concluded)
        if (signalled := attempt.signalled) is not None:
            is_signalled = (signalled == "SUCCESS") == (delivered.failure is None)
            attempt.result = replace(delivered, is_signalled=is_signalled)
        return "merged"

    async def _merge_failed(self, report: AttemptReport) -> ConcludeResult:
        """Merge a failure without values; if not even that can be merged, fail the run."""
        try:
            return await self._coordinator.merge(report)
        except (StoreError, DispatchError, KeyMissing, CodeMismatch):
            raise
        except Exception as error:
            logger.exception("%s could not be merged as a plain failure either", report.envelope.key)
            raise Unreadable(
                f"attempt {report.envelope.key} cannot be closed, not even as failed: {error}", cause=error
            ) from error


STEPS: Final[Mapping[Stage, Callable[[Attempts, StagedAttempt], Awaitable[Stage]]]] = {
    "taken": Attempts._claim,  # noqa: SLF001 - the table of this class's steps
    "claimed": Attempts._load,  # noqa: SLF001
    "loaded": Attempts._admit,  # noqa: SLF001
    "admitted": Attempts._perform,  # noqa: SLF001
    "performed": Attempts._merge,  # noqa: SLF001
}
"""What takes an attempt from each stage to the next one."""


def _stored_units(stores: Stores) -> StoredUnits:
    from flujo_worker.durable.ledger import StoredUnits

    return StoredUnits(stores)


def _unperformed(claim: Claim, wanted: ClaimParameters, started: float) -> Outcome | None:
    """Return the outcome of an attempt that is claimed only to be closed; None if it must be performed."""
    if claim.aborted:
        return Outcome("cancelled")
    if wanted.error is not None:
        return _bare(wanted.error, NO_USAGE, started)
    return None if claim.over is None else Outcome("limit", fault=claim.over)


def _delivered(report: AttemptReport, concluded: ConcludeResult) -> DeliveryResult:
    fault, envelope = report.outcome.fault, report.envelope
    failure = None
    if fault is not None and report.outcome.kind in FAILURES:
        message = f"step '{envelope.step}' of run {envelope.ticket.run} failed in attempt {envelope.number}: {fault.type_name}: {fault.message}"
        failure = FailureText(message, fault.traceback)
    return DeliveryResult(concluded.verdict, concluded.counts, failure=failure)


def _bare(error: Exception, usage: Usage, started: float) -> Outcome:
    if isinstance(error, Unreadable):
        raise error
    if (lack := lack_in(error)) is not None:
        raise lack from error
    return failed(fault_of(error, "system"), usage, started)
