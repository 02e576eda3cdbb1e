"""Perform an attempt: claim → policy → outcome → conclude. One message in, one disposition out; expected errors are not raised.

A start or a join goes the same way, with nothing to perform: only what follows is decided.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Final

from flujo_client.attempt_info import AttemptInfo, performing
from flujo_client.config.manager import Settings
from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.contract.code import AwaitedCode, ParkCause
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import NO_USAGE, Event, Outcome, Usage
from flujo_client.errors import KeyMissing
from flujo_client.redact import redact
from flujo_worker import failpoints
from flujo_worker.attempts.admission import Admission, Admissions
from flujo_worker.attempts.budget import ExpectedCall, emit_reservations
from flujo_worker.attempts.claim import ClaimParameters, Claims
from flujo_worker.attempts.code import PipelineLoading, Preparation, Prepared
from flujo_worker.attempts.gates import LimitRefusal
from flujo_worker.attempts.isolation import DeliveryResult, FailureText, Isolation, Processes, isolated
from flujo_worker.attempts.lease import ActiveAttempt, Lease
from flujo_worker.attempts.outcome import Claimed, Outcomes, failed
from flujo_worker.changed_code.code_changes import CodeChanges
from flujo_worker.changed_code.code_registry import CodeMismatch, LoadedPipeline, lack_in, put_bounded
from flujo_worker.concurrency.call_context import waiting_for_locks
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.coordinator.coordinator import ConcludeResult, Coordinator
from flujo_worker.domain.values import AttemptReport
from flujo_worker.errors import DispatchError, StoreError, Unreadable, WireError
from flujo_worker.guards.models import CalledModels
from flujo_worker.guards.rates import RateLimiter
from flujo_worker.observe.log import collecting_events
from flujo_worker.observe.story import Story
from flujo_worker.own_keys import OwnKeys
from flujo_worker.ports import Claim, Room, Stores
from flujo_worker.runtime.attempt_run import AttemptRun, CallSettings, RefusalMemory
from flujo_worker.runtime.effects import note_lock
from flujo_worker.runtime.faults import fault_of
from flujo_worker.user_code.hooks import HookCaller

logger = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 2.0
"""Seconds until an attempt is retried whose run still has attempts running under its old code."""
ELSEWHERE_S: Final = 0.5, 1.5
"""After how many seconds a message that this process cannot decrypt is sent again, drawn at random from between."""
LOCKED_S: Final = 0.5, 5.0
"""The minimum and the maximum of seconds after which a message is sent again whose rows somebody else holds."""
FAILURES: Final = ("failure", "lost", "limit")
"""The outcomes that Celery's listeners see as failures: a question to a person is not among them."""


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
        late_s: Callable[[], float] = lambda: 0.0,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._keys = keys
        self._changes, self._late_s = changes, late_s
        self.isolation = Isolation(stores.attempts, processes)
        self._stores, self._coordinator, self._lease, self._loop = stores, coordinator, lease, loop
        self.catalog = hooks.catalog
        self._effects = effects = coordinator.effects
        self.preparation = Preparation(stores, hooks, settings, effects)
        self._admissions = Admissions(stores, coordinator, models, rates, hooks.catalog, settings)
        self.loading = PipelineLoading(hooks.catalog, effects)
        self.claims = Claims(stores, lease, self.loading, threads, settings, effects)
        self._outcomes = Outcomes(
            stores, lease, loop, threads, hooks, settings, effects, migrations=self.preparation.migrations, check=check
        )
        self._refused_formats, self._locked_since = refused_formats, dict[str, float]()
        self._own, self._prompts = RunSettings.of(settings), settings.log.prompts

    async def deliver(self, envelope: Envelope) -> DeliveryResult:
        """Perform one attempt, or refuse the delivery; return which.

        Raises: WireError: the attempt belongs to another pipeline than the message names.
        """
        with waiting_for_locks():
            delivered = await self.perform_delivered(envelope)
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
        """Run `perform_delivered`, and wait for it."""
        return self._effects.run(self.perform_delivered(envelope))

    async def perform_delivered(self, envelope: Envelope) -> DeliveryResult:
        """Perform one attempt, or refuse the delivery; return which.

        While the event loop is blocked nothing is claimed: a message that waits here for long is sent again, and another worker takes it.
        """
        if not self._loop.answers.is_set():
            await self._effects.together(self._wait_for_loop, None)
        if self._loop.is_given_up:
            return DeliveryResult("busy")
        if self._keys is not None and self._keys.is_lacking:
            return await self._postpone(envelope.key)
        with self._lease.holding(envelope.key) as held:
            if held is None:
                return DeliveryResult("busy")
            done = await self._perform_beside_others(envelope, held)
            if done.disposition != "suspect":
                return done
            here = partial(self._perform, envelope, held, "alone")
            return await self._effects.call(
                self.isolation.perform, envelope, done.in_company, lambda: self._effects.run(here())
            )

    def _wait_for_loop(self, waiting: Sequence[None]) -> Sequence[bool]:
        return [self._loop.answers.wait()] * len(waiting)

    def perform_in(self, room: Room, envelope: Envelope) -> DeliveryResult:
        """Perform a suspect in this process, which was started for it."""
        with self._lease.holding(envelope.key) as held, waiting_for_locks():
            return DeliveryResult("busy") if held is None else self._effects.run(self._perform(envelope, held, room))

    async def _perform_beside_others(self, envelope: Envelope, held: ActiveAttempt) -> DeliveryResult:
        gate = self.isolation.gate
        if not gate.enter_if_free():
            await self._effects.call(gate.enter)
        try:
            return await self._perform(envelope, held, "shared")
        finally:
            gate.leave()

    async def _perform(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> DeliveryResult:
        try:
            if self.catalog.has(envelope.ticket.reference):
                return await self._performed(envelope, held, room)
            async with self.loading.turn(envelope):
                return await self._performed(envelope, held, room)
        except (KeyMissing, CodeMismatch) as lack:
            return await self._leave_claimed(envelope, held, lack)
        except Unreadable as error:
            await self._effects.call(self._coordinator.break_off, envelope.ticket.run, error, held.claim)
            return DeliveryResult("unreadable")

    async def leave_encrypted(self, key: str, error: KeyMissing) -> DeliveryResult:
        """Leave the attempt of a message whose key is not here. Its row may have been encrypted with another one since."""
        await self._effects.call(self._check_row, key, error)
        return await self._postpone(key)

    def _check_row(self, key: str, error: KeyMissing) -> None:
        try:
            for envelope in self._stores.backlog.envelopes([key]):
                Envelope.from_wire(envelope.to_wire())
        except KeyMissing:
            if self._keys is not None:
                self._keys.lacks(f"value_keys.{error.key_id}")

    async def _postpone(self, key: str) -> DeliveryResult:
        """Have a message sent again in a while, for a worker that can decrypt it."""
        await self._effects.call(self._stores.attempts.postpone, key, random.uniform(*ELSEWHERE_S))  # noqa: S311 - jitter
        return DeliveryResult("waiting")

    async def _leave_claimed(
        self, envelope: Envelope, held: ActiveAttempt, error: KeyMissing | CodeMismatch
    ) -> DeliveryResult:
        """Give an attempt back that this process cannot judge for what it lacks: that is not its run's fault, and counts nowhere.

        If the key of a value is here, the value was changed, or its writer has another secret: the run is parked, until a worker can read it.
        """
        if isinstance(error, CodeMismatch):
            return await self._change_code(envelope, held, error)
        keys, call = self._keys, self._effects.call
        if keys is None or not await call(keys.lacks, f"value_keys.{error.key_id}"):
            cause = ParkCause("key", error.key_id)
            return await self._park(
                envelope, held, f"a value is {error.message}", cause, self.preparation.refuse(envelope.key)
            )
        if moved := await call(self._stores.leases.hand_back, self._lease.worker, [envelope.key]):
            await self._effects.send(await call(self._stores.backlog.envelopes, moved), None)
        return DeliveryResult("waiting")

    async def _performed(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> DeliveryResult:
        if envelope.ticket.limits is not None and not self.catalog.has(envelope.ticket.reference):
            claim = await self.claims.import_claimed(envelope, held, room)
            if claim.refusal is not None:
                return await self._refused(envelope, claim)
        wanted = await self.claims.wanted(envelope)
        claim = await self.claims.claim(envelope, held, wanted.to_reserve, room)
        if claim.refusal is not None:
            return await self._refused(envelope, claim)
        failpoints.hit("after_claim")
        self._locked_since.pop(envelope.key, None)
        if room != "shared":
            event = isolated(room, self._lease.worker)
            await self._effects.call(self._stores.records.note, envelope.ticket.run, [event], key=envelope.key)
        reply, started = wanted.reply, time.monotonic()
        unperformed = _unperformed(claim, wanted, started)
        if unperformed is not None:
            return await self._conclude(held.report(envelope, unperformed), started)
        if reply is not None and reply.answer is None:  # a copy that came too early: it may be answered by now
            reply = await self._effects.call(self.claims.reply, envelope)
        return await self._carry_out(Claimed(envelope, held, reply, time.monotonic(), wanted.inline), wanted.calls)

    async def _refused(self, envelope: Envelope, claim: Claim) -> DeliveryResult:
        logger.info("attempt %s not claimed: %s", envelope.key, claim.refusal)
        if claim.refusal == "locked":
            return await self._put_back(envelope)
        if claim.refusal == "moved":  # its message names the plan that the run used before
            await self._effects.call(self._stores.attempts.postpone, envelope.key, 0.0)
        counts = claim.refusal == "ended" and await self._effects.call(self._coordinator.counts, envelope)
        return DeliveryResult(claim.refusal or "busy", counts, claim.in_company)

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

    async def _carry_out(self, claimed: Claimed, calls: Sequence[ExpectedCall]) -> DeliveryResult:
        envelope, held = claimed.envelope, claimed.held
        entry = await self.loading.entry(envelope)
        prepared = await self.preparation.of(envelope, entry)
        started = time.monotonic()  # importing code takes time that is not the step's
        claimed = replace(claimed, envelope=prepared.envelope, started=started)
        own = settings_of(envelope.ticket.settings, self._own)
        admission = self._admissions.of(claimed, entry, own)
        try:
            if await admission.holds_back(held):
                return DeliveryResult("waiting")
        except LimitRefusal as error:
            return await self._conclude(prepared.report(_bare(error.cause, NO_USAGE, started), held), started)
        try:
            return await self._admitted(claimed, entry, prepared, admission, own, calls)
        finally:
            await admission.release()

    async def _admitted(
        self,
        claimed: Claimed,
        entry: LoadedPipeline,
        prepared: Prepared,
        admission: Admission,
        own: RunSettings,
        calls: Sequence[ExpectedCall],
    ) -> DeliveryResult:
        """Perform an attempt that may begin, and conclude it."""
        envelope, held, started = claimed.envelope, claimed.held, claimed.started
        run = AttemptRun(
            _info(envelope, held),
            CallSettings(own.cost, own.template, self._prompts, own.agents.agent_timeout_s),
            pace=admission.pace,
            refused_formats=self._refused_formats,
            late_s=self._late_s,
        )
        with collecting_events(envelope, worker=self._lease.worker) as story, performing(run):
            if held.reserved:
                emit_reservations(calls)
            prepared.emit()
            outcome = await self._outcome(claimed, entry, story, run)
        await admission.report(run.calls)
        if outcome is None and await self._coordinator.is_aborted(envelope):
            outcome = Outcome("cancelled", latency_s=time.monotonic() - started)
        if outcome is None:
            return DeliveryResult("cancelled")
        if await self._is_left_to_other_build(envelope, held, outcome):
            return DeliveryResult("waiting")
        delivered = await self._conclude(prepared.report(outcome, held), started)
        if run.signalled is None:
            return delivered
        return replace(delivered, is_signalled=(run.signalled == "SUCCESS") == (delivered.failure is None))

    async def _is_left_to_other_build(self, envelope: Envelope, held: ActiveAttempt, outcome: Outcome) -> bool:
        """Leave a step that found a module missing to another live build that may have it; where none does, that is a bug of the step."""
        fault, changes, fence = outcome.fault, self._changes, held.fence or 0
        if fault is None or fault.type_name != ModuleNotFoundError.__name__ or changes is None:
            return False
        call, run, why = self._effects.call, envelope.ticket.run, redact(fault.message)
        if not await call(changes.leave_to_other_build, envelope, fence, why, claim_id=held.claim_id):
            return False
        await call(self._stores.attempts.spend, run, held.claim, outcome.usage, held.reserved)
        return True

    async def _outcome(self, claimed: Claimed, entry: LoadedPipeline, story: Story, run: AttemptRun) -> Outcome | None:
        """Perform it; it fails if it cannot begin because the rows and the plan do not match."""
        try:
            return await self._outcomes.of(claimed, entry, story, run)
        except (StoreError, CodeMismatch, KeyMissing):
            raise
        except Exception as error:
            logger.exception("attempt %s could not be performed", claimed.envelope.key)
            return _bare(error, NO_USAGE, claimed.started)

    async def _change_code(self, envelope: Envelope, held: ActiveAttempt, finding: CodeMismatch) -> DeliveryResult:
        """Move the run to this worker's code, wait until that is possible, or park it with the reason."""
        if self._changes is None or finding.loaded is None:
            awaited = self.preparation.awaited(finding, envelope.key)
            return await self._hand_over_or_park(envelope, held, str(finding), finding.cause, awaited)
        run, plan = envelope.ticket.run, finding.loaded.plan
        carried = await self._effects.call(self._changes.carry_on, run, plan, mine=envelope.key)
        if carried.verdict == "moved":
            return DeliveryResult("moved")
        if carried.verdict == "refused":
            return await self._hand_over_or_park(envelope, held, carried.reason, carried.cause)
        waiting = Event("run.waits_for_old_code", {"reason": carried.reason})
        call, fence = self._effects.call, held.fence or 0
        await call(self._stores.attempts.defer, envelope.key, fence, ASK_AGAIN_S, waiting, claim_id=held.claim_id)
        return DeliveryResult("waiting")

    async def _hand_over_or_park(
        self, envelope: Envelope, held: ActiveAttempt, why: str, cause: ParkCause, awaited: AwaitedCode | None = None
    ) -> DeliveryResult:
        """Leave the attempt to a live worker that has its code; without one, park its run."""
        changes, reason, fence = self._changes, redact(why), held.fence or 0
        if changes is not None and await self._effects.call(
            changes.hand_over, envelope, fence, reason, awaited, claim_id=held.claim_id
        ):
            return DeliveryResult("waiting")
        return await self._park(envelope, held, reason, cause, awaited)

    async def _park(
        self, envelope: Envelope, held: ActiveAttempt, why: str, cause: ParkCause, awaited: AwaitedCode | None = None
    ) -> DeliveryResult:
        reason, shown = redact(why), cause._replace(what=redact(cause.what))
        logger.error("run %s is parked: %s", envelope.ticket.run, reason)
        key, fence, park = envelope.key, held.fence or 0, self._stores.plan_moves.park
        await self._effects.call(park, key, fence, reason, cause=shown, code=awaited, claim_id=held.claim_id)
        return DeliveryResult("parked")

    async def _conclude(self, notice: AttemptReport, started: float) -> DeliveryResult:
        """Conclude; an outcome that Postgres rejects fails its attempt, which would otherwise stay `running` while this process lives."""
        try:
            concluded = await self._coordinator.merge(notice)
        except (StoreError, DispatchError, Unreadable, KeyMissing, CodeMismatch):
            raise
        except Exception as error:
            logger.exception("the outcome of %s could not be merged", notice.envelope.key)
            return await self._conclude_failed(replace(notice, outcome=_bare(error, notice.outcome.usage, started)))
        return _delivered(notice, concluded)

    async def _conclude_failed(self, notice: AttemptReport) -> DeliveryResult:
        """Conclude with a failure without values; if not even that can be merged, fail the run."""
        try:
            concluded = await self._coordinator.merge(notice)
        except (StoreError, DispatchError, KeyMissing, CodeMismatch):
            raise
        except Exception as error:
            logger.exception("%s could not be merged as a plain failure either", notice.envelope.key)
            raise Unreadable(
                f"attempt {notice.envelope.key} cannot be closed, not even as failed: {error}", cause=error
            ) from error
        return _delivered(notice, concluded)


def _unperformed(claim: Claim, wanted: ClaimParameters, started: float) -> Outcome | None:
    """Return the outcome of an attempt that is claimed only to be closed; None if it must be performed."""
    if claim.aborted:
        return Outcome("cancelled")
    if wanted.error is not None:
        return _bare(wanted.error, NO_USAGE, started)
    return None if claim.over is None else Outcome("limit", fault=claim.over)


def _delivered(notice: AttemptReport, concluded: ConcludeResult) -> DeliveryResult:
    fault, envelope = notice.outcome.fault, notice.envelope
    failure = None
    if fault is not None and notice.outcome.kind in FAILURES:
        message = f"step '{envelope.step}' of run {envelope.ticket.run} failed in attempt {envelope.number}: {fault.type_name}: {fault.message}"
        failure = FailureText(message, fault.traceback)
    return DeliveryResult(concluded.verdict, concluded.counts, failure=failure)


def _bare(error: Exception, usage: Usage, started: float) -> Outcome:
    if isinstance(error, Unreadable):
        raise error
    if (lack := lack_in(error)) is not None:
        raise lack from error
    return failed(fault_of(error, "system"), usage, started)


def _info(envelope: Envelope, held: ActiveAttempt) -> AttemptInfo:
    ticket = envelope.ticket
    return AttemptInfo(
        ticket.run,
        envelope.key,
        envelope.address,
        envelope.step,
        envelope.number,
        trace_parent=ticket.trace_parent,
        queue=envelope.queue,
        claim_id=held.claim_id or "",
    )
