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
from flujo_client.attempt_info import AttemptInfo
from flujo_client.config.manager import Settings
from flujo_client.config.run_settings import RunSettings, Streams, settings_of
from flujo_client.contract.approval import make_token
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import NO_USAGE, Event, Fault, Outcome, Usage
from flujo_client.errors import KeyMissing
from flujo_worker import failpoints
from flujo_worker.attempts.attempt import LAST, NEXT, AttemptServices, Stage, StagedAttempt
from flujo_worker.attempts.budget import emit_reservations
from flujo_worker.attempts.claim import NOTHING, Claims, performs_step
from flujo_worker.attempts.elsewhere import Elsewhere
from flujo_worker.attempts.gates import Admissions, LimitRefusal
from flujo_worker.attempts.isolation import DeliveryResult, FailureText, Isolation, Processes
from flujo_worker.attempts.lease import Lease
from flujo_worker.attempts.needs import Needs, PipelineLoading, Preparation
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
from flujo_worker.runtime.attempt_run import ActiveAttempt, AttemptRun, CallSettings, RefusalMemory
from flujo_worker.runtime.effects import note_lock
from flujo_worker.runtime.faults import fault_of
from flujo_worker.user_code.hooks import HookCaller

if TYPE_CHECKING:
    from flujo_worker.durable.journal import Journal
    from flujo_worker.durable.ledger import StoredUnits
    from flujo_worker.streams.writers import StreamWriters

logger = logging.getLogger(__name__)

LOCKED_S: Final = 0.5, 5.0
"""The minimum and maximum seconds until a message is sent again whose rows another transaction has locked."""
FAILURES: Final = ("failure", "lost", "limit")
"""The outcomes that Celery's events and signals report as failures; a question to a person is none."""
BUSY: Final = DeliveryResult("busy")


class Attempts:
    """Performs attempts in this process.

    Without `changes` one whose code has changed is parked. `models` and `rates` have the state and the limits of the models that attempts call,
    `refused_formats` which of them refused structured output. Without `processes` an attempt that has lost its process before runs alone in this one.
    Without `keys`, what cannot be decrypted was changed. `units` returns where the units of durable attempts are written, by default the store, asked in
    threads; `streams` what writes the streams of runs. `late_s` returns for how many seconds the event loop has been late; a constant where attempts are
    not to begin again for that. `check` ends this process if an attempt has broken it.
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
        self._effects = coordinator.effects
        services = AttemptServices(stores, coordinator, lease, loop, threads, hooks, settings)
        needs = Needs(hooks.catalog, threads, services.resolve)
        self.preparation = Preparation(services, needs)
        self.elsewhere = Elsewhere(services, self.preparation, changes, keys)
        self._admissions = Admissions(services, models, rates)
        self.loading = PipelineLoading(hooks.catalog, self._effects)
        self.claims = Claims(services, self.loading)
        self._outcomes = Outcomes(services, self.preparation.migrations, needs, check)
        self._refused_formats, self._locked_since = refused_formats, dict[str, float]()
        self._own_keys, self._keys, self._limits = keys, settings.keys(), settings.limits
        self._own, self._prompts = RunSettings.of(settings), settings.log.prompts
        self._settings: dict[int, tuple[RunSettings, CallSettings]] = {}

    async def deliver(self, envelope: Envelope) -> DeliveryResult:
        """Carry out a message, or refuse the delivery; return which.

        While the event loop is blocked nothing is claimed: a message that waits here for long is sent again, and another worker takes it.

        Raises WireError: the attempt belongs to another pipeline than the message names.
        """
        if not self._loop.answers.is_set():
            await self._effects.together(self._wait_for_loop, None)
        if self._loop.is_given_up:
            return BUSY
        if self._own_keys is not None and self._own_keys.is_lacking:
            return await self.elsewhere.postpone(envelope.key)
        active = self._lease.hold(envelope.key)
        if active is None:
            return BUSY
        try:
            ended = await self._run_with_others(StagedAttempt(envelope, active))
            if ended.disposition == "suspect":
                alone = partial(self._run_in, "alone", envelope, active)
                return await self._effects.call(self.isolation.perform, envelope, ended.in_company, alone)
        finally:
            self._lease.let_go(envelope.key)
        if ended.disposition == "mismatched":
            reference = envelope.ticket.reference
            raise WireError(f"attempt {envelope.key} does not belong to the pipeline {reference!r:.200}")
        return ended

    def perform(self, envelope: Envelope) -> DeliveryResult:
        """Do what `deliver` does, and wait for its end."""
        return self._effects.run(self.deliver(envelope))

    async def signal_join(self, run: str, address: str) -> DeliveryResult:
        """Join the fan-out of a join signal if its branches are all closed."""
        envelope = await self._effects.call(self._coordinator.join_if_due, run, address)
        return DeliveryResult("waiting") if envelope is None else await self.deliver(envelope)

    def perform_in(self, room: Room, envelope: Envelope) -> DeliveryResult:
        """Perform a suspect in this process, which was started for it."""
        active = self._lease.hold(envelope.key)
        if active is None:
            return BUSY
        try:
            with waiting_for_locks():
                return self._run_in(room, envelope, active)
        finally:
            self._lease.let_go(envelope.key)

    def _wait_for_loop(self, waiting: Sequence[None]) -> Sequence[bool]:
        return [self._loop.answers.wait()] * len(waiting)

    async def _run_with_others(self, attempt: StagedAttempt) -> DeliveryResult:
        gate = self.isolation.gate
        if not gate.enter_if_free():
            await self._effects.call(gate.enter)
        try:
            return await self._run_stages(attempt)
        finally:
            gate.leave()

    def _run_in(self, room: Room, envelope: Envelope, active: ActiveAttempt) -> DeliveryResult:
        return self._effects.run(self._run_stages(StagedAttempt(envelope, active, room)))

    async def _run_stages(self, attempt: StagedAttempt) -> DeliveryResult:
        """Run the stages of an attempt. Without its pipeline it loads that itself, or waits until another attempt has loaded it."""
        envelope = attempt.message
        waits = not self.catalog.has(envelope.ticket.reference)
        try:
            try:
                if waits:
                    await self.loading.wait(envelope)
                while attempt.stage not in LAST:
                    after = await STAGES[attempt.stage](self, attempt)
                    assert after in NEXT[attempt.stage], f"{attempt.stage} is not followed by {after}"
                    attempt.stage = after
            finally:
                if attempt.stream is not None:
                    attempt.end_stream(attempt.stream)
                if attempt.admission is not None:
                    await self._admissions.release(attempt, attempt.admission)
                if waits:
                    self.loading.end_wait(envelope)
        except (KeyMissing, CodeMismatch) as lack:
            return await self.elsewhere.leave(attempt, lack)
        except Unreadable as error:
            await self._effects.call(self._coordinator.break_off, envelope.ticket.run, error, attempt.active.claim)
            return DeliveryResult("unreadable")
        return attempt.result

    # One method for each stage; it returns the next stage.

    async def _claim(self, attempt: StagedAttempt) -> Stage:
        envelope, active, room = attempt.message, attempt.active, attempt.room
        if envelope.ticket.limits is not None and not self.catalog.has(envelope.ticket.reference):
            claim = await self.claims.import_claimed(envelope, active, room)
            if claim.refusal is not None:
                return await self._refuse(attempt, claim)
        is_usual = envelope.kind != "resume" and envelope.ticket.limits is None
        parameters = NOTHING if is_usual else await self.claims.find_parameters(envelope)
        claim = await self.claims.claim(envelope, active, parameters.to_reserve, room)
        if claim.refusal is not None:
            return await self._refuse(attempt, claim)
        failpoints.hit("after_claim")
        self._locked_since.pop(active.key, None)
        if room != "shared":
            event = Event("attempt.isolated", {"room": room, "worker": self._lease.worker}, "warning")
            await self._effects.call(self._stores.records.note, envelope.ticket.run, [event], key=active.key)
        attempt.started = time.monotonic()
        attempt.reply, attempt.calls, attempt.inlined = parameters.reply, parameters.calls, parameters.inlined
        if claim.aborted:
            attempt.outcome = Outcome("cancelled")
        elif parameters.error is not None:
            attempt.outcome = _failed_outcome(parameters.error, NO_USAGE, attempt.started)
        elif claim.over is not None:
            attempt.outcome = Outcome("limit", fault=claim.over)
        else:
            return "claimed"
        return "performed"

    async def _refuse(self, attempt: StagedAttempt, claim: Claim) -> Stage:
        envelope, key, call = attempt.message, attempt.active.key, self._effects.call
        logger.info("attempt %s not claimed: %s", key, claim.refusal)
        if claim.refusal == "locked":
            return attempt.end(await self._put_back(envelope))
        if claim.refusal == "moved":  # its message names the plan that the run used before
            await call(self._stores.attempts.postpone, key, 0.0)
        is_part = claim.refusal == "ended" and await call(self._coordinator.is_part, envelope)
        return attempt.end(DeliveryResult(claim.refusal or "busy", is_part, claim.in_company))

    async def _put_back(self, envelope: Envelope) -> DeliveryResult:
        """Send the message again after a delay that grows for as long as another transaction locks the attempt's rows."""
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
            attempt.reply = await self._effects.call(self.claims.reply, attempt.message)
        ticket = attempt.message.ticket
        entry = self.catalog.known(ticket.reference, ticket.fingerprint)
        attempt.entry = await self.loading.entry(attempt.message) if entry is None else entry
        attempt.plan = attempt.entry.plan
        await self.preparation.prepare(attempt)
        attempt.started = time.monotonic()  # the time of imports does not count
        return "loaded"

    async def _admit(self, attempt: StagedAttempt) -> Stage:
        envelope, active, needs = attempt.message, attempt.active, attempt.needs
        ticket, rates = envelope.ticket, self._admissions.rates
        own = settings_of(ticket.settings, self._own)
        performs = envelope.kind == "step" or performs_step(envelope, attempt.reply)
        if performs and (needs is None or needs.is_gated):
            try:
                if await self._admissions.holds_back(attempt, own.cost):
                    return attempt.end(DeliveryResult("waiting"))
            except LimitRefusal as error:
                attempt.outcome = _failed_outcome(error.cause, NO_USAGE, attempt.started)
                return "performed"
        place = envelope.address, envelope.step, envelope.number
        run = AttemptRun(
            AttemptInfo(ticket.run, active.key, *place, ticket.trace_parent, envelope.queue, active.claim_id or ""),
            (self._settings.get(id(own)) or self._read_settings(own))[1],
            pace=None if rates is None else partial(rates.pacing, ticket.tenant, attempt.admission),
            refused_formats=self._refused_formats,
            journal=partial(self._journal, envelope, active),  # without the attempt, which has the run
            late_s=self._late_s,
        )
        if own.stream and self._streams is not None and _is_shown(attempt, own.stream):
            attempt.stream = self._streams().writer(envelope, active.fence or 0)
        attempt.begin(run, worker=self._lease.worker)
        return "admitted"

    def _journal(self, envelope: Envelope, active: ActiveAttempt, run: AttemptRun) -> Journal:
        from flujo_worker.durable.journal import Journal

        first = envelope.number if envelope.units_from is None else envelope.units_from
        place, token = f"{envelope.address}:{envelope.step}", partial(self._token, envelope)
        return Journal(run, self._units(), active, place=place, first=first, limits=self._limits, token=token)

    def _token(self, envelope: Envelope) -> str:
        """Return the token of the question that an attempt may end with; without a key to sign it, the question's key."""
        run, number = envelope.ticket.run, envelope.number + 1
        key = str(AttemptKey(run, envelope.address, envelope.step, number, "resume"))
        return make_token(run, key, None, self._keys) or key

    def _read_settings(self, own: RunSettings) -> tuple[RunSettings, CallSettings]:
        """Return a run's settings with what they say of calls, for all runs with the same."""
        filling, timeout_s = filling_of(own.template), own.agents.agent_timeout_s
        read = own, CallSettings(own.cost, own.template, self._prompts, timeout_s, filling)
        put_bounded(self._settings, id(own), read)
        return read

    async def _perform(self, attempt: StagedAttempt) -> Stage:
        if attempt.active.reserved:
            attempt.inside(emit_reservations, attempt.calls)
        if attempt.migrated is not None or (attempt.code is not None and attempt.code.changed):
            attempt.emit_preparation()
        try:
            outcome = await self._outcomes.perform(attempt)
        except (StoreError, CodeMismatch, KeyMissing):
            raise
        except Exception as error:  # it cannot begin: the rows and the plan do not match
            logger.exception("attempt %s could not be performed", attempt.active.key)
            outcome = _failed_outcome(error, NO_USAGE, attempt.started)
        attempt.signalled = attempt.run.signalled
        if attempt.run.calls or attempt.admission is not None:
            await self._admissions.report(attempt)
        if outcome is None and await self._coordinator.is_aborted(attempt.message):
            outcome = Outcome("cancelled", latency_s=time.monotonic() - attempt.started)
        if outcome is None and attempt.active.has_left:
            return attempt.end(await self.elsewhere.hand_back(attempt.active.key))
        if outcome is None:
            return attempt.end(DeliveryResult("cancelled"))
        if outcome.fault is not None and await self.elsewhere.leave_to_other_build(attempt, outcome):
            return attempt.end(DeliveryResult("waiting"))
        attempt.outcome = outcome
        return "performed"

    async def _merge(self, attempt: StagedAttempt) -> Stage:
        """Merge; an outcome that Postgres rejects fails its attempt, which would otherwise stay `running` while this process lives."""
        report = attempt.report()
        try:
            concluded = await self._coordinator.merge(report, attempt.plan)
        except (StoreError, DispatchError, Unreadable, KeyMissing, CodeMismatch):
            raise
        except Exception as error:
            logger.exception("the outcome of %s could not be merged", attempt.active.key)
            report = replace(report, outcome=_failed_outcome(error, report.outcome.usage, attempt.started))
            concluded = await self._merge_failed(report)
        failure = None if report.outcome.fault is None else _failure_text(report, report.outcome.fault)
        is_signalled = attempt.signalled is not None and (attempt.signalled == "SUCCESS") == (failure is None)
        attempt.result = DeliveryResult(
            concluded.verdict, concluded.is_part, failure=failure, is_signalled=is_signalled
        )
        return "merged"

    async def _merge_failed(self, report: AttemptReport) -> ConcludeResult:
        """Merge a failure without values; if not even that can be merged, fail the run."""
        try:
            return await self._coordinator.merge(report)
        except (StoreError, DispatchError, KeyMissing, CodeMismatch):
            raise
        except Exception as error:
            key = report.envelope.key
            logger.exception("%s could not be merged as a plain failure either", key)
            raise Unreadable(f"attempt {key} cannot be closed, not even as failed: {error}", cause=error) from error


STAGES: Final[Mapping[Stage, Callable[[Attempts, StagedAttempt], Awaitable[Stage]]]] = {
    "taken": Attempts._claim,  # noqa: SLF001 - the table of this class's stages
    "claimed": Attempts._load,  # noqa: SLF001
    "loaded": Attempts._admit,  # noqa: SLF001
    "admitted": Attempts._perform,  # noqa: SLF001
    "performed": Attempts._merge,  # noqa: SLF001
}


def _is_shown(attempt: StagedAttempt, wanted: Streams) -> bool:
    """Return whether to stream an attempt: one of a step if its run or step asks for that, the answer to a question always."""
    envelope, entry = attempt.message, attempt.entry
    if not performs_step(envelope, attempt.reply):
        return envelope.kind == "resume"
    return wanted == "all" or entry.steps[entry.node_of(envelope).path].config.stream


def _stored_units(stores: Stores) -> StoredUnits:
    from flujo_worker.durable.ledger import StoredUnits

    return StoredUnits(stores)


def _failure_text(report: AttemptReport, fault: Fault) -> FailureText | None:
    envelope = report.envelope
    if report.outcome.kind not in FAILURES:
        return None
    message = f"step '{envelope.step}' of run {envelope.ticket.run} failed in attempt {envelope.number}: {fault.type_name}: {fault.message}"
    return FailureText(message, fault.traceback)


def _failed_outcome(error: Exception, usage: Usage, started: float) -> Outcome:
    if isinstance(error, Unreadable):
        raise error
    if (lack := lack_in(error)) is not None:
        raise lack from error
    return failed(fault_of(error, "system"), usage, started)
