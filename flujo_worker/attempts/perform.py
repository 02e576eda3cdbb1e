"""An attempt: claim → policy → outcome → conclude. One message in, one disposition out; nothing expected is raised.

A start or a join is carried out the same way, with nothing to perform: what follows is all there is to it.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from flujo_client.attempt_info import AttemptInfo, performing
from flujo_client.contract.outcome import NO_USAGE, Outcome
from flujo_client.redact import redact
from flujo_worker import failpoints
from flujo_worker.attempts.budget import emit_reservations
from flujo_worker.attempts.claim import BreakerGate, Claims, performs_step
from flujo_worker.attempts.isolation import DeliveryResult, Isolation, isolated
from flujo_worker.attempts.outcome import Claimed, Outcomes, failed
from flujo_worker.domain.values import AttemptReport
from flujo_worker.errors import DispatchError, StoreError, Unreadable, WireError
from flujo_worker.observe.log import collecting_events
from flujo_worker.runtime.attempt_run import AttemptRun, CallSettings
from flujo_worker.runtime.faults import fault_of
from flujo_worker.user_code.code_registry import CodeMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from flujo_client.config.manager import Settings
    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.outcome import Event, Usage
    from flujo_worker.attempts.budget import ExpectedCall
    from flujo_worker.attempts.isolation import Processes
    from flujo_worker.attempts.lease import ActiveAttempt, Lease
    from flujo_worker.coordinator.coordinator import Coordinator
    from flujo_worker.event_loop import Loop
    from flujo_worker.guards.breakers import Breakers
    from flujo_worker.ports import Claim, Ledger, Room
    from flujo_worker.user_code.code_registry import LoadedPipeline
    from flujo_worker.user_code.hooks import HookCaller

logger = logging.getLogger(__name__)


class Attempts:
    """Performs attempts in this process.

    Args:
        ledger: where attempts are claimed.
        coordinator: who is told what came of them.
        lease: this process's right to work.
        loop: the process's event loop.
        threads: where sync agents run.
        hooks: calls the pipelines' hooks, and has the live pipelines of this process.
        settings: limits, timeouts and allowed imports.
        breakers: of the models that attempts call; None where the project has none.
        processes: where attempts run that have lost their process before; None: such an attempt has this one for itself.
    """

    def __init__(  # noqa: PLR0913 - the composition root gives it all it needs, once
        self,
        ledger: Ledger,
        coordinator: Coordinator,
        lease: Lease,
        loop: Loop,
        threads: Executor,
        hooks: HookCaller,
        settings: Settings,
        *,
        breakers: Breakers | None,
        processes: Processes | None = None,
    ) -> None:
        self._breakers, self.isolation = breakers, Isolation(ledger, processes)
        self._ledger, self._coordinator, self._lease, self._loop = ledger, coordinator, lease, loop
        self.catalog = hooks.catalog
        self._claims = Claims(ledger, lease, hooks.catalog, threads, settings)
        self._outcomes = Outcomes(ledger, lease, loop, threads, hooks, settings)
        self._call_settings = CallSettings(settings.cost, settings.template, settings.log.prompts)

    def deliver(self, envelope: Envelope) -> bool:
        """Perform one attempt, or refuse the delivery; tell whether it counts as its chord's part.

        Raises:
            WireError: the attempt is one of another pipeline than the message says.
        """
        delivered = self.perform(envelope)
        if delivered.disposition == "mismatched":
            raise WireError(f"attempt {envelope.key} is not one of {envelope.ticket.reference!r:.200}")
        return delivered.counts

    def signal_join(self, run: str, address: str) -> bool:
        """Join the fan-out of a join signal if its branches are all closed; tell whether that counts in the chord around it."""
        envelope = self._coordinator.join_if_due(run, address)
        return envelope is not None and self.deliver(envelope)

    def perform(self, envelope: Envelope) -> DeliveryResult:
        """Perform one attempt, or refuse the delivery; say which.

        While the event loop is blocked nothing is claimed: what waits here for long is sent again, and another worker has it.
        """
        self._loop.answers.wait()
        if self._loop.is_given_up:
            return DeliveryResult("busy")
        with self._lease.holding(envelope.key) as held:
            if held is None:
                return DeliveryResult("busy")
            with self.isolation.gate.shared():
                done = self._perform(envelope, held, "shared")
            if done.disposition != "suspect":
                return done
            return self.isolation.perform(envelope, done.in_company, lambda: self._perform(envelope, held, "alone"))

    def perform_in(self, room: Room, envelope: Envelope) -> DeliveryResult:
        """Perform a suspect in this process, which was started for it."""
        with self._lease.holding(envelope.key) as held:
            return DeliveryResult("busy") if held is None else self._perform(envelope, held, room)

    def _perform(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> DeliveryResult:
        try:
            return self._performed(envelope, held, room)
        except Unreadable as error:
            self._coordinator.break_off(envelope.ticket.run, error, key=envelope.key)
            return DeliveryResult("unreadable")

    def _performed(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> DeliveryResult:
        if envelope.ticket.limits is not None and not self.catalog.has(envelope.ticket.reference):
            claim = self._claims.import_claimed(envelope, held, room)
            if claim.refusal is not None:
                return self._refused(envelope, claim)
        wanted = self._claims.wanted(envelope)
        claim = self._claims.claim(envelope, held, wanted.to_reserve, room)
        if claim.refusal is not None:
            return self._refused(envelope, claim)
        failpoints.hit("after_claim")
        if room != "shared":
            self._ledger.note(envelope.ticket.run, [isolated(room, self._lease.worker)], key=envelope.key)
        reply, started = wanted.reply, time.monotonic()
        if claim.aborted:
            return self._conclude(AttemptReport(envelope, held.fence or 0, Outcome("cancelled")), started)
        if wanted.error is not None:
            return self._conclude(
                AttemptReport(envelope, held.fence or 0, _bare(wanted.error, NO_USAGE, started)), started
            )
        if claim.over is not None:
            return self._conclude(AttemptReport(envelope, held.fence or 0, Outcome("limit", fault=claim.over)), started)
        if reply is not None and reply.answer is None:  # a copy that came too early: it may be answered by now
            reply = self._claims.reply(envelope)
        return self._carry_out(Claimed(envelope, held, reply, time.monotonic()), wanted.calls)

    def _refused(self, envelope: Envelope, claim: Claim) -> DeliveryResult:
        logger.info("attempt %s not claimed: %s", envelope.key, claim.refusal)
        counts = claim.refusal == "ended" and self._coordinator.counts(envelope)
        return DeliveryResult(claim.refusal or "busy", counts, claim.in_company)

    def _carry_out(self, claimed: Claimed, calls: Sequence[ExpectedCall]) -> DeliveryResult:
        envelope, held, started = claimed.envelope, claimed.held, claimed.started
        fence = held.fence or 0
        try:
            entry = self.catalog.entry(envelope.ticket.reference, envelope.ticket.fingerprint)
        except CodeMismatch as finding:
            return self._park(envelope, fence, finding)
        guard = self._guard(claimed, entry)
        if guard.holds_back(fence):
            return DeliveryResult("waiting")
        run = AttemptRun(_info(envelope), self._call_settings)
        with collecting_events(envelope, worker=self._lease.worker) as story, performing(run):
            if held.is_limited:
                emit_reservations(calls)
            outcome = self._outcome(claimed, entry, story, run)
        guard.report(run.calls)
        if outcome is None and self._coordinator.is_aborted(envelope):
            outcome = Outcome("cancelled", latency_s=time.monotonic() - started)
        if outcome is None:
            return DeliveryResult("cancelled")
        return self._conclude(AttemptReport(envelope, fence, outcome), started)

    def _outcome(
        self, claimed: Claimed, entry: LoadedPipeline, story: Sequence[Event], run: AttemptRun
    ) -> Outcome | None:
        """Perform it; what cannot even begin, for the rows and the plan do not fit each other, has failed."""
        try:
            return self._outcomes.of(claimed, entry, story, run)
        except StoreError:
            raise
        except Exception as error:
            logger.exception("attempt %s could not be performed", claimed.envelope.key)
            return _bare(error, NO_USAGE, claimed.started)

    def _park(self, envelope: Envelope, fence: int, finding: CodeMismatch) -> DeliveryResult:
        reason = redact(str(finding))
        logger.error("run %s is parked: %s", envelope.ticket.run, reason)
        self._ledger.park(envelope.key, fence, reason)
        return DeliveryResult("parked")

    def _conclude(self, notice: AttemptReport, started: float) -> DeliveryResult:
        """Conclude; an outcome that Postgres will not take fails its attempt, or it would stay `running` for as long as we live."""
        try:
            concluded = self._coordinator.conclude(notice)
        except (StoreError, DispatchError, Unreadable):
            raise
        except CodeMismatch as finding:
            return self._park(notice.envelope, notice.fence, finding)
        except Exception as error:
            logger.exception("the outcome of %s could not be merged", notice.envelope.key)
            return self._conclude_failed(replace(notice, outcome=_bare(error, notice.outcome.usage, started)))
        return DeliveryResult(concluded.verdict, concluded.counts)

    def _conclude_failed(self, notice: AttemptReport) -> DeliveryResult:
        """Conclude a failure with nothing in it; if not even that can be merged, its run has no other end."""
        try:
            concluded = self._coordinator.conclude(notice)
        except (StoreError, DispatchError):
            raise
        except CodeMismatch as finding:
            return self._park(notice.envelope, notice.fence, finding)
        except Exception as error:
            logger.exception("nor could its failure")
            raise Unreadable(f"no outcome of {notice.envelope.key} can be merged: {error}", cause=error) from error
        return DeliveryResult(concluded.verdict, concluded.counts)

    def _guard(self, claimed: Claimed, entry: LoadedPipeline) -> BreakerGate:
        envelope, agent = claimed.envelope, None
        if self._breakers is not None and performs_step(envelope, claimed.reply):
            with suppress(Exception):  # an agent that is not found shows when the attempt needs it
                agent = self.catalog.agent(entry.steps[entry.node_of(envelope).path].agent)
        return BreakerGate(self._breakers, self._ledger, envelope, agent)


def _bare(error: Exception, usage: Usage, started: float) -> Outcome:
    if isinstance(error, Unreadable):
        raise error
    return failed(fault_of(error, "system", None), usage, started)


def _info(envelope: Envelope) -> AttemptInfo:
    ticket = envelope.ticket
    return AttemptInfo(
        ticket.run, envelope.key, envelope.address, envelope.step, envelope.number, trace_parent=ticket.trace_parent
    )
