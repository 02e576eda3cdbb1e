"""The coordinator: the only code that moves a run. decide ⇄ ask → commit → publish, in this order.

It is called at the end of each attempt's task, and by the sweeper for attempts that can no longer report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

from flujo_client.address import branch_of
from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.contract.envelope import CONTROL_QUEUE, Envelope, JoinSignal, RunHeader
from flujo_client.contract.outcome import Event, Fault, Outcome
from flujo_client.contract.records import LIVE_RUN
from flujo_client.errors import FlujoError
from flujo_client.frozen import frozen
from flujo_client.plan.plan import Backoff, Plan
from flujo_client.transport.chords import NO_LANE
from flujo_worker import failpoints
from flujo_worker.changed_code.code_registry import lack_in, put_bounded
from flujo_worker.coordinator.answers import KnownScopes, RecordedAnswers
from flujo_worker.coordinator.offload import offload_large_values
from flujo_worker.domain import values
from flujo_worker.domain.decide import decide
from flujo_worker.domain.values import AttemptReport, BranchClosed, CallUserCode, Decision, FanOut, ReadScope
from flujo_worker.errors import Unreadable
from flujo_worker.observe.log import collecting_events
from flujo_worker.ports import Admitted, ClaimId, Committed, FanOutPlace, Replies, Stores, Verdict
from flujo_worker.runtime.effects import BlockingEffects, Effects
from flujo_worker.runtime.fault_text import clean

Send = Callable[[Sequence[Envelope], FanOut | None], None]

logger = logging.getLogger(__name__)

_NO_SETTINGS = RunSettings()
_RAISED = (values.UserCodeFailed, values.UserCodePaused)
"""Answers that are raised as exceptions."""


@frozen
class ConcludeResult:
    """The result of a notice. A delivery that closed a branch and left its lane empty is a part of its chord."""

    verdict: Verdict
    is_part: bool = False


class ScopeClosedMeanwhile(Exception):
    """A scope above the attempt's is closed: another worker has concluded it, or the run was stopped."""


class UserCodeAnswers(Protocol):
    """Answers the questions to user code that a decision depends on."""

    def answer(self, ticket: RunHeader, call: CallUserCode, replies: Replies = tuple) -> Any:
        """Answer one question; raises UserCodeFailed when user code fails, UserCodePaused when it asks a person first.

        `replies` reads people's answers at the place where the decision began.
        """

    def store_result(self, ticket: RunHeader, entry: values.CacheEntry) -> Event | None:
        """Store in the cache the results that were merged, if any, and return the result."""


class Coordinator:
    """Moves runs.

    Args:
        stores: where decisions are committed.
        send: publishes envelopes after the commit, as a chord's if a fan-out is given; the sweeper sends what it cannot.
        send_later: publishes an envelope after that many seconds; the sweeper sends what it cannot.
        evaluator: answers the questions of decisions.
        backoff: the waits of steps that set none of their own.
        inline: the size in bytes above which a value is stored once and pointed at.
        control_queue: where starts and joins go.
        on_hooks_due: called when a commit may have left hook calls to be made.
        on_merged: called with each decision that was committed here.
        on_refused: called with the verdict about an outcome that came too late to be merged.
        on_gated_end: called with a run that has passed gates, once its end is committed here.
        counts_chords: whether chords count the branches of fan-outs; otherwise this looks after each whether it was the last.
        effects: how commits, sends and answers are waited for; in the calling thread when None.
    """

    def __init__(  # noqa: PLR0913 - what a merge depends on
        self,
        stores: Stores,
        send: Send,
        evaluator: UserCodeAnswers,
        *,
        backoff: Backoff,
        send_later: Callable[[Envelope, float], None] = lambda *_: None,
        inline: int = 65_536,
        control_queue: str = CONTROL_QUEUE,
        on_hooks_due: Callable[[], None] = lambda: None,
        on_merged: Callable[[Decision], None] = lambda _: None,
        on_refused: Callable[[Verdict], None] = lambda _: None,
        on_gated_end: Callable[[str], None] = lambda _: None,
        counts_chords: bool = True,
        effects: Effects | None = None,
    ) -> None:
        self.effects = effects or BlockingEffects(stores, send)
        self._stores, self._send, self._evaluator, self._backoff = stores, send, evaluator, backoff
        self.send_later = send_later
        self._inline, self._control_queue, self._on_hooks_due = inline, control_queue, on_hooks_due
        self._on_merged, self._on_refused, self._on_gated_end = on_merged, on_refused, on_gated_end
        self._counts_chords = counts_chords
        self._plans, self._known_scopes = dict[str, Plan](), KnownScopes()

    def conclude(self, notice: AttemptReport) -> ConcludeResult:
        """Run `merge`, and wait for it."""
        return self.effects.run(self.merge(notice))

    async def merge(self, notice: AttemptReport, plan: Plan | None = None) -> ConcludeResult:
        """Merge an attempt's outcome, and publish what follows; the run's `plan` is read from the store when None.

        Returns:
            merged: done. repeated: done before. stale or stopped: rejected, only the spend was recorded.

        Raises:
            CodeMismatch: user code must be asked, and this worker does not have the code that the run was started with.
        """
        effects, ticket = self.effects, notice.envelope.ticket
        plan = plan or await self._plan_of(ticket)
        try:
            decision, large = offload_large_values(await self._decide(plan, notice), self._inline)
        except (ScopeClosedMeanwhile, values.MessageOutdated):
            return await self._refuse_outcome(notice, "stale")
        committed = Committed("unstored")
        while committed.verdict == "unstored":  # again where a failover has lost the values before the merge
            if large:
                await effects.call(self._stores.blobs.store, large)
            committed = await effects.commit(decision)
        if committed.verdict not in ("merged", "repeated"):
            return await self._refuse_outcome(notice, committed.verdict)
        if committed.claim_id is not None:
            self._known_scopes.note(decision, committed.claim_id)
        self._announce(plan, decision, committed)
        if committed.breach is not None:
            await effects.call(self.handle_proactive_cancellation, ticket, committed.breach)
            return ConcludeResult(committed.verdict)
        if decision.cache_entries:
            await effects.call(self._cache_results, decision)
        failpoints.hit("before_publish")
        await self._publish(decision, committed)
        failpoints.hit("after_publish")
        if decision.end is not None and ticket.root:
            await effects.call(self._signal_parent, ticket.run, by="worker")
        if decision.branch_end is None:
            return ConcludeResult(committed.verdict)
        is_part = await self._after_branch(decision.branch_end, committed, notice.envelope)
        return ConcludeResult(committed.verdict, is_part)

    def stop(self, run: str, status: Literal["cancelled", "expired", "failed"], reason: str) -> None:
        """Wind a run down; if it is a child run, its parent continues without it."""
        if self._stores.backlog.stop(run, status, reason):
            self._on_hooks_due()
            self._signal_parent(run, by="sweeper")

    def admit(self, ended: Collection[str] | None = None, again: Collection[str] = ()) -> Admitted:
        """Let waiting runs begin as the store's `admit` does, and publish their first messages."""
        admitted = self._stores.admission.admit(ended, again=again)
        if envelopes := self._stores.backlog.envelopes(admitted.keys):
            failpoints.hit("runs_admitted")
            self._send(envelopes, None)
        return admitted

    def release_permit(self, key: str, fence: int, limit: str) -> None:
        """Release an attempt's permit, and publish the attempts that waited for it."""
        offered = self._stores.limits.release_permit(key, fence, limit)
        if offered and (envelopes := self._stores.backlog.envelopes(offered)):
            self._send(envelopes, None)

    def break_off(self, run: str, error: Exception, at: ClaimId | None = None) -> bool:
        """Fail a run that no worker can continue: its rows cannot be read, or nothing that follows can be merged.

        If `at` has a fence, that claim must still be the attempt's. Return whether the run was failed here. If this process ends after the mark,
        a sweep winds the run down.
        """
        if (lack := lack_in(error)) is not None:
            logger.error("run %s is left to other workers: %s", run, lack)
            return False
        message = clean(error.message if isinstance(error, FlujoError) else str(error))
        fault = Fault("system", type(error).__name__, message, message, type(error).__module__, Unreadable.code)
        event = Event("run.unreadable", {"reason": fault.message}, "error")
        if not self._stores.attempts.break_off(run, fault, event, at):
            return False
        logger.error("run %s fails, because no worker can continue it: %s", run, fault.message)
        self.stop(run, "failed", fault.message)
        return True

    def handle_proactive_cancellation(self, ticket: RunHeader, breach: Fault) -> None:
        """Wind down a tree of runs whose limit was passed; the commit that passed it marked the tree's first run.

        If this process ends, a sweep does it.
        """
        first = str((ticket.limits or {}).get("run", ticket.run))
        self.stop(first, "failed", breach.message)
        while orphans := self._stores.scopes.orphaned_children(100):
            for run in orphans:
                self.stop(run, "cancelled", "parent ended")

    def lost(self, envelope: Envelope, fence: int, times: int, how: str | None = None) -> ConcludeResult:
        """Fail a step whose process died every time it ran alone (poison); `how` it ended the last time, if that is known."""
        message = f"the process died while this step ran alone, {times} times"
        feedback, details = f"Step execution failed with AttemptLost: {message}", {"how": how} if how else {}
        fault = Fault("system", "AttemptLost", message, feedback, code="ATTEMPT_LOST", details=details)
        return self.conclude(AttemptReport(envelope, fence, Outcome("lost", fault=fault)))

    def signal_join(self, run: str, fan_out: str, *, by: str) -> bool:
        """Signal the join of a fan-out whose branches are all closed, or of an import whose child run has ended; return whether it was signalled.

        The message is published here.
        """
        if not self._stores.scopes.signal_join(run, fan_out, self._control_queue, by):
            return False
        if envelopes := self._stores.backlog.envelopes([JoinSignal(run, fan_out).key]):
            self._send(envelopes, None)
        return True

    def join_if_due(self, run: str, fan_out: str) -> Envelope | None:
        """Create the join's work row if it is due, after a chord's signal, and return its envelope, if any."""
        self._stores.scopes.signal_join(run, fan_out, self._control_queue, "chord")
        return next(iter(self._stores.backlog.envelopes([JoinSignal(run, fan_out).key])), None)

    def wind_down(self, run: str, fan_out: str, *, by: str) -> None:
        """Close the branches of an aborted fan-out that are not running, and join it if none is."""
        self._stores.scopes.wind_down_branches(run, fan_out)
        self.signal_join(run, fan_out, by=by)

    async def is_aborted(self, envelope: Envelope) -> bool:
        """Return whether a fan-out around this work was aborted."""
        around = [(envelope.ticket.run, fan_out) for fan_out in envelope.lanes]
        return bool(around) and await self.effects.together(self._are_aborted, around)

    def _are_aborted(self, places: Sequence[Sequence[FanOutPlace]]) -> list[bool]:
        aborted = self._stores.scopes.aborted_among({each for around in places for each in around})
        return [not aborted.isdisjoint(around) for around in places]

    def is_part(self, envelope: Envelope) -> bool:
        """Return whether a redelivered attempt, which closed its branch and left its lane empty, is a part of its chord. Without chords, signal the join if it is due."""
        if not envelope.lanes:
            return False
        fan_out = max(envelope.lanes, key=len)
        if not self._counts_chords:
            if self._stores.scopes.closed_among([(envelope.ticket.run, fan_out)]):
                self.signal_join(envelope.ticket.run, fan_out, by="worker")
            return False
        if envelope.lanes[fan_out] == NO_LANE:
            return False
        branch = branch_of(fan_out, envelope.address)
        return self._stores.scopes.is_last_of_lane(envelope.ticket.run, branch, envelope.key)

    def _cache_results(self, decision: Decision) -> None:
        """Store merged results in the cache, before anything that follows can ask for them."""
        envelope = decision.notice.envelope
        stored = [self._evaluator.store_result(envelope.ticket, each) for each in decision.cache_entries]
        if events := [each for each in stored if each is not None]:
            self._stores.records.note(envelope.ticket.run, events, key=envelope.key)

    def _signal_parent(self, run: str, *, by: str) -> None:
        """Let the run that waits for an ended one, if any, continue."""
        try:
            child = self._stores.scopes.child_run(run)
        except Unreadable as error:  # a sweep will signal the waiting run, which finds the same
            logger.error("%s", error.message)  # noqa: TRY400 - the finding is all there is
            return
        if child is not None:
            failpoints.hit("before_parent_ring")
            self.signal_join(child.parent_run, child.parent_address, by=by)

    def _announce(self, plan: Plan, decision: Decision, committed: Committed) -> None:
        """Notify the listeners of a commit, before its messages are published."""
        ticket = decision.notice.envelope.ticket
        if committed.verdict == "merged":
            self._on_merged(decision)
        if plan.hooks and (decision.end is not None or any(each.question for each in decision.next)):
            self._on_hooks_due()
        if decision.end is not None and ticket.is_gated:
            self._on_gated_end(ticket.run)

    async def _plan_of(self, ticket: RunHeader) -> Plan:
        """Return a run's plan, which is read once; raises Unreadable."""
        plan: Plan | Unreadable | None = self._plans.get(ticket.fingerprint)
        if plan is None:
            plan = await self.effects.together(self._read_plans, ticket.fingerprint)
        if isinstance(plan, Unreadable):
            raise plan
        return plan

    async def _decide(self, plan: Plan, notice: AttemptReport) -> Decision:
        recorded = RecordedAnswers()
        backoff = self._backoff if notice.outcome.kind == "success" else self._backoff_of(notice)  # a success has none
        deciding = decide(plan, notice, backoff=backoff, control_queue=self._control_queue)
        answer: Any = None
        try:
            while True:
                request = deciding.throw(answer) if isinstance(answer, _RAISED) else deciding.send(answer)
                answer = self._known_scopes.find(notice, request) if isinstance(request, ReadScope) else None
                if answer is None:
                    answer = await self.effects.call(self._answer, notice.envelope, request, recorded)
        except StopIteration as end:
            decision: Decision = end.value
            return recorded.put_into(decision) if recorded.answers else decision

    def _backoff_of(self, notice: AttemptReport) -> Backoff:
        """Return the retry delays of steps that set none: the run's, else this process's."""
        table = notice.envelope.ticket.settings
        return self._backoff if table is None else settings_of(table, _NO_SETTINGS).backoff

    def _answer(self, envelope: Envelope, request: CallUserCode | ReadScope, recorded: RecordedAnswers) -> Any:
        """Answer one question; an error is an answer too."""
        if not isinstance(request, CallUserCode):
            return self._read_scope(envelope.ticket.run, request)
        with collecting_events(envelope) as events:
            answer = self._ask_user_code(envelope, request)
        recorded.note(request, answer, events.all_events())
        return answer

    def _ask_user_code(self, envelope: Envelope, call: CallUserCode) -> Any:
        run, address, step = envelope.ticket.run, envelope.address, envelope.step
        replies = tuple if envelope.kind == "step" else partial(self._stores.records.replies, run, address, step)
        try:
            return self._evaluator.answer(envelope.ticket, call, replies)
        except _RAISED as raised:
            return raised

    def _read_scope(self, run: str, request: ReadScope) -> Any:
        if request.children:
            return self._stores.scopes.children(run, request.address)
        if request.child_run is not None:
            return self._ended_child(request.child_run)
        row = self._stores.scopes.scope(run, request.address)
        if row is None:
            raise Unreadable(f"run {run} has no scope '{request.address}'")
        if row.status != "open":
            raise ScopeClosedMeanwhile
        return row

    def _ended_child(self, run: str) -> values.ChildRunRow:
        child = self._stores.scopes.child_run(run)
        if child is None or child.status in LIVE_RUN:
            raise Unreadable(f"no child run {run} has ended")
        return child

    def _read_plans(self, fingerprints: Sequence[str]) -> list[Plan | Unreadable]:
        """Read plans, each once, for all merges that need them at this moment; an error is an answer too."""
        plans = {each: self._plans.get(each) or self._read_plan(each) for each in set(fingerprints)}
        return [plans[each] for each in fingerprints]

    def _read_plan(self, fingerprint: str) -> Plan | Unreadable:
        try:
            plan = self._stores.code.plan(fingerprint)
        except Unreadable as error:
            return error
        if plan is None:
            return Unreadable(f"no plan with fingerprint {fingerprint}")
        put_bounded(self._plans, fingerprint, plan)
        return plan

    async def _publish(self, decision: Decision, committed: Committed) -> None:
        envelopes = [decision.envelope_of(following) for following in decision.next if following.sent_after_s == 0]
        if (child := decision.child_run) is not None:
            envelopes.append(replace(decision.envelope_of(child.first), ticket=child.ticket))
        left = decision.branch_end or decision.lane_left
        if committed.taken is not None and left is not None:
            found = await self.effects.call(self._stores.backlog.envelopes, [committed.taken])
            envelopes += [each for each in found if left.fan_out in each.lanes]  # else a failover has lost that
        if envelopes:
            await self.effects.send(envelopes, decision.fan_out)
        if committed.given and (given := await self.effects.call(self._stores.backlog.envelopes, committed.given)):
            await self.effects.send(given, None)
        for following in decision.next:
            if after_s := following.sent_after_s:
                self.send_later(decision.envelope_of(following), after_s)

    async def _after_branch(self, ended: BranchClosed, committed: Committed, envelope: Envelope) -> bool:
        """Signal the join after a branch has closed, if no chord will. Return whether its chord counts the branch.

        If it aborts its fan-out, belongs to an aborted one, or has no lane, signal at once: no chord will. Where none counts, signal after the last.
        """
        run, call = envelope.ticket.run, self.effects.call
        if ended.aborts:
            await call(self.wind_down, run, ended.fan_out, by="worker")
        elif (ended.lane == NO_LANE and committed.verdict == "merged") or (
            await self._must_signal(ended, envelope) if committed.must_signal is None else committed.must_signal
        ):
            await call(self.signal_join, run, ended.fan_out, by="worker")
        if ended.lane == NO_LANE or not self._counts_chords:
            return False
        return await call(self.is_part, envelope) if committed.verdict == "repeated" else committed.taken is None

    async def _must_signal(self, ended: BranchClosed, envelope: Envelope) -> bool:
        if self._counts_chords:
            return await self.is_aborted(envelope)
        return await self.effects.together(self._are_closed, (envelope.ticket.run, ended.fan_out))

    def _are_closed(self, fan_outs: Sequence[FanOutPlace]) -> list[bool]:
        """Return which of these are closed, but of equal ones only the first."""
        closed = self._stores.scopes.closed_among(set(fan_outs))
        return [each in closed and each not in fan_outs[:number] for number, each in enumerate(fan_outs)]

    async def _refuse_outcome(self, notice: AttemptReport, verdict: Verdict) -> ConcludeResult:
        """Record only the spend of a refused outcome. In an aborted fan-out, close the attempt as cancelled."""
        envelope, outcome, call = notice.envelope, notice.outcome, self.effects.call
        if verdict == "stale" and outcome.kind != "cancelled" and await self.is_aborted(envelope):
            cancelled = Outcome("cancelled", usage=outcome.usage, latency_s=outcome.latency_s)
            return await self.merge(replace(notice, outcome=cancelled))
        run, claim = envelope.ticket.run, ClaimId(envelope.key, notice.fence, notice.claim_id)
        await call(self._stores.attempts.spend, run, claim, outcome.usage, notice.reserved)
        logger.warning("outcome of %s under fence %d refused: %s", envelope.key, notice.fence, verdict)
        self._on_refused(verdict)
        data = {"fence": notice.fence, "verdict": verdict, "outcome": outcome.kind}
        refused = Event("outcome.refused", data, "warning")
        await call(self._stores.records.note, run, [refused], key=envelope.key)
        return ConcludeResult(verdict)
