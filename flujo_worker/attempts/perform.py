"""An attempt: claim → policy → outcome → conclude. One message in, one disposition out; nothing expected is raised.

A start or a join is carried out the same way, with nothing to perform: what follows is all there is to it.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flujo_client.attempt_info import AttemptInfo, performing
from flujo_client.config.models import Historical
from flujo_client.contract.outcome import NO_USAGE, Outcome
from flujo_client.contract.processing import resolve
from flujo_client.redact import redact
from flujo_worker import failpoints
from flujo_worker.attempts.budget import calls_of, reservations, tell_calls
from flujo_worker.attempts.delivered import Delivered
from flujo_worker.attempts.guard import Guard
from flujo_worker.attempts.history import CostHistory
from flujo_worker.attempts.isolation import Isolation, isolated
from flujo_worker.attempts.outcome import Claimed, Outcomes, failed
from flujo_worker.attempts.policies.resume import is_for_tool
from flujo_worker.domain.values import AttemptReport
from flujo_worker.errors import DispatchError, StoreError, Unreadable, WireError
from flujo_worker.observe.log import collecting_events
from flujo_worker.ports import PlanName
from flujo_worker.runtime.faults import fault_of
from flujo_worker.runtime.work import Notes
from flujo_worker.user_code.code_registry import CodeMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from flujo_client.config.manager import Settings
    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.outcome import Event, Usage
    from flujo_client.pipeline.step import Step
    from flujo_worker.attempts.budget import ExpectedCall
    from flujo_worker.attempts.isolation import Processes
    from flujo_worker.attempts.lease import ActiveAttempt, Lease
    from flujo_worker.coordinator.coordinator import Coordinator
    from flujo_worker.domain.budget import Reservation
    from flujo_worker.event_loop import Loop
    from flujo_worker.guards.breakers import Breakers
    from flujo_worker.ports import Claim, Ledger, Reply, Room
    from flujo_worker.user_code.code_registry import LoadedPipeline
    from flujo_worker.user_code.hooks import HookCaller

logger = logging.getLogger(__name__)

UNCOMMITTED_S = 1.0
"""How long a sweep may take from sending a message to its commit."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What an attempt is claimed with, or why that cannot be told."""

    reply: Reply | None = None
    calls: Sequence[ExpectedCall] = ()
    asks: Sequence[Reservation] = ()
    error: Exception | None = None


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
        self.catalog, self._settings = hooks.catalog, settings
        self._outcomes = Outcomes(ledger, lease, loop, threads, hooks, settings)
        cost = settings.cost
        is_historical = cost.estimation_strategy == "historical"
        self._history = CostHistory(ledger, cost.historical or Historical(), threads) if is_historical else None

    def deliver(self, envelope: Envelope) -> bool:
        """Perform one attempt, or refuse the delivery; tell whether it counts as its chord's part.

        Raises:
            WireError: the attempt is one of another pipeline than the message says.
        """
        delivered = self.perform(envelope)
        if delivered.disposition == "mismatched":
            raise WireError(f"attempt {envelope.key} is not one of {envelope.ticket.reference!r:.200}")
        return delivered.counts

    def ring(self, run: str, address: str) -> bool:
        """Join a fan-out whose doorbell rang, if its branches are all closed; tell whether that counts in the chord around it."""
        envelope = self._coordinator.answer_doorbell(run, address)
        return envelope is not None and self.deliver(envelope)

    def perform(self, envelope: Envelope) -> Delivered:
        """Perform one attempt, or refuse the delivery; say which.

        While the event loop is blocked nothing is claimed: what waits here for long is sent again, and another worker has it.
        """
        self._loop.answers.wait()
        if self._loop.is_given_up:
            return Delivered("busy")
        with self._lease.holding(envelope.key) as held:
            if held is None:
                return Delivered("busy")
            with self.isolation.gate.shared():
                done = self._perform(envelope, held, "shared")
            if done.disposition != "suspect":
                return done
            return self.isolation.perform(envelope, done.in_company, lambda: self._perform(envelope, held, "alone"))

    def perform_in(self, room: Room, envelope: Envelope) -> Delivered:
        """Perform a suspect in this process, which was started for it."""
        with self._lease.holding(envelope.key) as held:
            return Delivered("busy") if held is None else self._perform(envelope, held, room)

    def _perform(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> Delivered:
        try:
            return self._performed(envelope, held, room)
        except Unreadable as error:
            self._coordinator.break_off(envelope.ticket.run, error, key=envelope.key)
            return Delivered("unreadable")

    def _performed(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> Delivered:
        if envelope.ticket.limits is not None and not self.catalog.has(envelope.ticket.reference):
            claim = self._import_claimed(envelope, held, room)
            if claim.refusal is not None:
                return self._refused(envelope, claim)
        wanted = self._wanted(envelope)
        claim = self._claim(envelope, held, wanted.asks, room)
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
            reply = self._reply(envelope)
        return self._carry_out(Claimed(envelope, held, reply, time.monotonic()), wanted.calls)

    def _import_claimed(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> Claim:
        """Import, under a claim of its own, the code that tells what to reserve: a death at its import is this attempt's loss (ADR 55)."""
        claim = self._claim(envelope, held, (), room)
        if claim.fence is not None:
            with suppress(CodeMismatch):
                self.catalog.entry(envelope.ticket.reference, envelope.ticket.fingerprint)
            self._ledger.defer(envelope.key, claim.fence, 0.0)
            held.fence = None
        return claim

    def _refused(self, envelope: Envelope, claim: Claim) -> Delivered:
        logger.info("attempt %s not claimed: %s", envelope.key, claim.refusal)
        counts = claim.refusal == "ended" and self._coordinator.counts(envelope)
        return Delivered(claim.refusal or "busy", counts, claim.in_company)

    def _wanted(self, envelope: Envelope) -> _Wanted:
        """Find what the attempt is claimed with. Where that fails it is claimed all the same, to report the error and end."""
        try:
            reply = self._reply(envelope)
            calls, asks = self._asks(envelope, reply)
        except StoreError:
            raise
        except Exception as error:
            logger.exception("what attempt %s needs cannot be told", envelope.key)
            return _Wanted(error=error)
        return _Wanted(reply, calls, asks)

    def _claim(self, envelope: Envelope, held: ActiveAttempt, asks: Sequence[Reservation], room: Room) -> Claim:
        """Claim, in the incarnation that this process has by then.

        A sweep sends an attempt that was lost before it commits that it was. Who may not judge sees it as somebody's until then.
        """
        until = time.monotonic() + UNCOMMITTED_S
        while True:
            worker, may_judge = self._lease.worker, self._lease.may_judge()
            claim = self._ledger.claim(
                envelope.key,
                worker,
                max_lost=self._settings.worker.max_lost,
                may_judge=may_judge,
                fan_outs=tuple(envelope.lanes),
                asks=asks,
                room=room,
                plan=PlanName(envelope.ticket.reference, envelope.ticket.fingerprint),
            )
            if claim.fence is not None:
                held.fence, held.is_limited = claim.fence, bool(asks)
                return replace(claim, refusal=None)
            if claim.refusal == "busy" and not may_judge and time.monotonic() < until:
                time.sleep(UNCOMMITTED_S / 20)
                continue
            if claim.refusal != "unleased":
                return claim
            if not self._lease.wait_for_another(worker, seconds=5 * self._settings.worker.lease_s):
                return claim

    def _reply(self, envelope: Envelope) -> Reply | None:
        return self._ledger.reply(envelope.key) if envelope.kind == "resume" else None

    def _asks(self, envelope: Envelope, reply: Reply | None) -> tuple[Sequence[ExpectedCall], Sequence[Reservation]]:
        """The calls that the attempt may make under limits, and what it is to reserve for them.

        Code that is not here reserves nothing: it is parked, not run.
        """
        ticket = envelope.ticket
        if ticket.limits is None or not _performs_step(envelope, reply):
            return (), ()
        with suppress(CodeMismatch):
            entry = self.catalog.entry(ticket.reference, ticket.fingerprint)
            path = entry.node_of(envelope).path
            calls = self._calls(envelope, entry.steps[path])
            return calls, reservations(envelope, entry, path, calls, datetime.now(UTC).date())
        return (), ()

    def _calls(self, envelope: Envelope, step: Step) -> list[ExpectedCall]:
        wanted = resolve(step.processing, envelope.ticket.aros)
        precheck = None if wanted is None else wanted.precheck
        known = None if self._history is None else self._history.expected(envelope)
        return calls_of(step, precheck, self._settings.cost, agent_of=self.catalog.agent, known=known)

    def _carry_out(self, claimed: Claimed, calls: Sequence[ExpectedCall]) -> Delivered:
        envelope, held, started = claimed.envelope, claimed.held, claimed.started
        fence = held.fence or 0
        try:
            entry = self.catalog.entry(envelope.ticket.reference, envelope.ticket.fingerprint)
        except CodeMismatch as finding:
            return self._park(envelope, fence, finding)
        guard = self._guard(claimed, entry)
        if guard.holds_back(fence):
            return Delivered("waiting")
        notes = Notes()
        with collecting_events(envelope, worker=self._lease.worker) as story, performing(_info(envelope)):
            if held.is_limited:
                tell_calls(calls)
            outcome = self._outcome(claimed, entry, story, notes)
        guard.report(notes.calls)
        if outcome is None and self._coordinator.is_aborted(envelope):
            outcome = Outcome("cancelled", latency_s=time.monotonic() - started)
        if outcome is None:
            return Delivered("cancelled")
        return self._conclude(AttemptReport(envelope, fence, outcome), started)

    def _outcome(self, claimed: Claimed, entry: LoadedPipeline, story: Sequence[Event], notes: Notes) -> Outcome | None:
        """Perform it; what cannot even begin, for the rows and the plan do not fit each other, has failed."""
        try:
            return self._outcomes.of(claimed, entry, story, notes)
        except StoreError:
            raise
        except Exception as error:
            logger.exception("attempt %s could not be performed", claimed.envelope.key)
            return _bare(error, NO_USAGE, claimed.started)

    def _park(self, envelope: Envelope, fence: int, finding: CodeMismatch) -> Delivered:
        reason = redact(str(finding))
        logger.error("run %s is parked: %s", envelope.ticket.run, reason)
        self._ledger.park(envelope.key, fence, reason)
        return Delivered("parked")

    def _conclude(self, notice: AttemptReport, started: float) -> Delivered:
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
        return Delivered(concluded.verdict, concluded.counts)

    def _conclude_failed(self, notice: AttemptReport) -> Delivered:
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
        return Delivered(concluded.verdict, concluded.counts)

    def _guard(self, claimed: Claimed, entry: LoadedPipeline) -> Guard:
        envelope, agent = claimed.envelope, None
        if self._breakers is not None and _performs_step(envelope, claimed.reply):
            with suppress(Exception):  # an agent that is not found shows when the attempt needs it
                agent = self.catalog.agent(entry.steps[entry.node_of(envelope).path].agent)
        return Guard(self._breakers, self._ledger, envelope, agent)


def _bare(error: Exception, usage: Usage, started: float) -> Outcome:
    if isinstance(error, Unreadable):
        raise error
    return failed(fault_of(error, "system", None), usage, started)


def _performs_step(envelope: Envelope, reply: Reply | None) -> bool:
    """Tell whether agents may be called: at a step, or when it is performed again with a person's answer."""
    return envelope.kind == "step" or (reply is not None and is_for_tool(reply))


def _info(envelope: Envelope) -> AttemptInfo:
    ticket = envelope.ticket
    return AttemptInfo(
        ticket.run, envelope.key, envelope.address, envelope.step, envelope.number, trace_parent=ticket.trace_parent
    )
