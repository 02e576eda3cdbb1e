"""Claims and merges in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Unpack
from uuid import uuid4

from flujo_client.address import AttemptKey
from flujo_client.contract.outcome import NO_USAGE, Event, Fault, Usage
from flujo_client.contract.records import CorrectionRecord
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.budget import Reservation
from flujo_worker.domain.transitions import ATTEMPT, RUN, SCOPE, require
from flujo_worker.domain.values import AttemptReport, BranchClosed, Decision, SlotReleased, UpdateScope
from flujo_worker.ports import Claim, ClaimId, ClaimTerms, Committed, Refusal, Room, Verdict
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.rows import StoredAttempt, StoredScope, when
from flujo_worker.store.memory.scopes import ScopesInMemory
from flujo_worker.store.memory.tables import InMemory, Tables
from flujo_worker.store.shared_rules import SUSPECT_AFTER, due_after_s, given_lanes, grace_s, held_branches, published


class AttemptsInMemory(InMemory):
    def __init__(self, tables: Tables, budgets: BudgetsInMemory, scopes: ScopesInMemory) -> None:
        super().__init__(tables)
        self._budgets, self._scopes = budgets, scopes

    def claim(self, key: str, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
        row = self._t.attempts.get(key)
        if row is None:
            return Claim(refusal="unknown")
        ticket, plan, room = self._t.runs[row.key.run].ticket, terms.get("plan"), terms.get("room", "shared")
        if plan is not None and plan != (ticket.reference, ticket.fingerprint):
            return Claim(refusal="moved" if plan.reference == ticket.reference else "mismatched")
        refusal = self._refusal(row, worker, room, terms["max_lost"], may_judge=terms.get("may_judge", True))
        if refusal is None:
            self._begin(row, worker, room)
        if refusal == "suspect":
            return Claim(refusal=refusal, in_company=row.losses - row.losses_alone)
        mine = refusal == "busy" and row.worker == worker
        fence = row.fence if refusal is None or mine else None
        if fence is None:
            return Claim(refusal=refusal)
        over = self._budgets.reserve(key, terms.get("to_reserve", ()))
        around = [(row.key.run, each) for each in terms.get("fan_outs", ())]
        aborted = bool(self._scopes.aborted_among(around))
        return Claim(fence, refusal, aborted=aborted, over=over, claim_id=row.claim_id)

    def locked_among(self, keys: Sequence[str]) -> set[str]:  # noqa: ARG002 - there is no other transaction
        return set()

    def locked_budgets(self, scopes: Collection[str]) -> set[str]:  # noqa: ARG002 - likewise
        return set()

    def lock_holders(self) -> tuple[str, ...]:
        return ()

    def commit(self, decision: Decision) -> Committed:
        verdict = self._judge(decision)
        envelope, outcome, end = decision.notice.envelope, decision.notice.outcome, decision.branch_end
        taken = breach = None
        if verdict == "merged":
            taken = self._apply(decision)
            breach = self._settle_merged(decision)
        elif verdict == "repeated" and end is not None:
            taken = self._scopes.after_in_lane(envelope.ticket.run, self._t.scopes[envelope.ticket.run, end.address])
        if verdict not in ("merged", "unstored"):
            claim = ClaimId(envelope.key, decision.notice.fence, decision.notice.claim_id)
            self.spend(envelope.ticket.run, claim, outcome.usage, decision.notice.reserved)
        claim_id, over = self._claim_next(decision) if verdict == "merged" and breach is None else (None, None)
        given = self._give_events(decision) if verdict == "merged" and decision.awaits_event else ()
        return Committed(verdict, taken, breach, claim_id, over, given=given)

    def spend(self, run: str, claim: ClaimId, usage: Usage, reserved: Sequence[Reservation] = ()) -> None:
        row = self._t.attempts.get(claim.key)
        if row is not None and not usage.is_nothing:
            self._budgets.restore(claim.key, reserved)
            self._budgets.settle(run, claim, usage, frees=not row.is_live)

    def spent_lately(self, reference: str, runs: int) -> list[tuple[str, Usage]]:
        known = [run for run in self._t.runs.values() if run.ticket.reference == reference]
        lately = {run.ticket.run for run in sorted(known, key=lambda run: -run.created_at)[:runs]}
        spent: dict[str, Usage] = {}
        for (key, _, _), usage in self._t.spends.items():
            if AttemptKey.parse(key).run in lately:
                spent[key] = spent.pop(key, NO_USAGE) + usage
        return list(reversed(spent.items()))

    def defer(
        self, claim: ClaimId, delay_s: float, event: Event | None = None, *, waits_for: str | None = None
    ) -> bool:
        row, key = self._t.given_back(claim, delay_s), claim.key
        if row is None:
            return False
        if waits_for is None:
            row.wait_no_more()
        elif row.waits_for != waits_for:
            row.waits_for, row.waits_since = waits_for, self._t.clock()
        if not row.losses:
            self._budgets.unreserve(key)
        if event and not any((each.attempt, each.name) == (key, event.name) for each in self._t.events):
            self._t.add_event(row.key.run, key, event.name, event.level, event.data)
        return True

    def return_starved(self, claim: ClaimId, delay_s: float, event: Event, *, most: int) -> bool:
        times = 1 + sum((each.attempt, each.name) == (claim.key, event.name) for each in self._t.events)
        row = None if times > most else self._t.given_back(claim, delay_s)
        if row is None:
            return False
        row.sends = 0
        row.wait_no_more()
        self._t.add_event(row.key.run, claim.key, event.name, event.level, {**event.data, "times": times})
        return True

    def postpone(self, key: str, delay_s: float) -> None:
        row = self._t.attempts.get(key)
        if row is not None and row.status == "queued":
            row.move("ready")
            row.sends, row.available_at = 0, self._t.clock() + delay_s

    def break_off(self, run: str, fault: Fault, event: Event | None = None, at: ClaimId | None = None) -> bool:
        row, (key, fence, claim_id) = self._t.runs.get(run), at or (None, None, None)
        attempt = self._t.attempts.get(key or "")
        is_held = fence is None or (attempt and attempt.status == "running" and attempt.is_under(fence, claim_id))
        if row is None or not row.is_live or row.stopped_at is not None or not is_held:
            return False
        row.stopped_at, row.fault, row.failed_key = self._t.clock(), fault, key
        if event is not None:
            self._t.add_event(run, key, event.name, event.level, event.data)
        return True

    def _claim_next(self, decision: Decision) -> tuple[str | None, Fault | None]:
        run = self._t.runs[decision.notice.envelope.ticket.run]
        may_run = run.status == "running" and self._t.may_run(run)
        for each in decision.next:
            if may_run and each.claimed_by and self._t.is_leased(each.claimed_by):
                row = self._t.attempts[each.key_in(run.ticket.run)]
                self._begin(row, each.claimed_by, "shared")
                return row.claim_id, self._budgets.reserve(str(row.key), each.to_reserve)
        return None, None

    def _settle_merged(self, decision: Decision) -> Fault | None:
        notice = decision.notice
        run, key, outcome = notice.envelope.ticket.run, notice.envelope.key, notice.outcome
        claim = ClaimId(key, notice.fence, notice.claim_id)
        breach = self._budgets.settle(run, claim, outcome.usage, frees=outcome.kind != "lost")
        if decision.end is not None:
            self._budgets.release(run)
        return breach

    def _refusal(self, row: StoredAttempt, worker: str, room: Room, most: int, *, may_judge: bool) -> Refusal | None:
        run = self._t.runs[row.key.run]
        if not row.is_live or row.status == "paused":
            return "ended"
        if run.status == "parked":
            return "parked"
        if not self._t.may_run(run):
            return "stopped"
        if not self._t.is_leased(worker):
            return "unleased"
        is_running = row.status == "running"
        if self._t.is_held_back(row) or (is_running and (self._t.is_leased(row.worker) or row.is_poison(most))):
            return "busy"
        if room == "shared" and row.losses + row.suspicions + is_running >= SUSPECT_AFTER:
            return "suspect"
        return "busy" if is_running and not may_judge else None

    def _begin(self, row: StoredAttempt, worker: str, room: Room) -> None:
        if row.status == "running":
            row.lose(self._t.clock())
        row.move("running")
        row.alone, row.room = room == "alone", None if room == "shared" else room
        row.fence, row.claim_id, row.worker = row.fence + 1, str(uuid4()), worker
        row.started_at = self._t.clock()
        run = self._t.runs[row.key.run]
        if run.status == "queued":
            run.move("running")
            run.started_at = self._t.clock()

    def _judge(self, decision: Decision) -> Verdict:
        notice, close = decision.notice, decision.close
        if not self._t.blobs.keys() >= set(decision.stored):
            return "unstored"
        row = self._t.attempts.get(notice.envelope.key)
        if row is None:
            return "stale"
        run = self._t.runs[row.key.run]
        claim, end = (row.fence, row.claim_id), (row.status, row.reason)
        is_stopped = run.stopped_at is not None or run.status in ("cancelled", "expired")
        verdict = decision.why_not_merged(claim, end, is_stopped=is_stopped)
        if verdict != "stale":
            return verdict
        around = decision.notice.envelope.lanes
        is_lost = close.status == "cancelled" and not any(self._t.scopes[row.key.run, each].aborted for each in around)
        holds = row.is_under(notice.fence, notice.claim_id) and row.status == "running" and not is_lost
        return "merged" if holds and all(self._is_current(row.key.run, move) for move in decision.moves) else "stale"

    def _is_current(self, run: str, move: UpdateScope) -> bool:
        scope = self._t.scopes.get((run, move.address))
        return scope is not None and scope.is_open and scope.version == move.version

    def _apply(self, decision: Decision) -> str | None:
        run, key, now = decision.notice.envelope.ticket.run, decision.notice.envelope.key, self._t.clock()
        self._require(decision)
        self._close(decision, now)
        for move in decision.moves:
            self._t.scopes[run, move.address].move(move, key, now)
        held = held_branches(decision)
        for opening in decision.opens:
            self._t.add_scope(run, StoredScope.opened(opening, given_lanes(opening, held), key, now))
        self._make(decision, now)
        for begun in decision.begun:
            self._t.contexts.setdefault((run, begun.place), begun.context)
        if decision.child_run is not None:
            self._t.begin_child(run, decision.child_run, now)
        taken = None if decision.branch_end is None else self._leave(run, decision.branch_end)
        taken = taken if decision.lane_left is None else self._give(run, decision.lane_left)
        for event in (*decision.notice.outcome.events, *decision.events):
            self._t.add_event(run, key, event.name, event.level, event.data, event.at)
        self._record_corrections(decision.notice, now)
        if decision.end is not None:
            self._t.runs[run].end(decision.end, now)
            self._t.runs[run].ended_by = key
            self._t.owe(run, "post_run")
        return taken

    def _give_events(self, decision: Decision) -> list[str]:
        above = [self._t.runs[decision.notice.envelope.ticket.run]]
        while (child := above[-1]).parent_run is not None and not child.is_background:
            above.append(self._t.runs[child.parent_run])
        runs = {each.ticket.run for each in above if self._t.may_merge(each)}
        events = [each for each in self._t.sent_events.values() if each.run in runs and not each.is_over]
        given = [self._t.give_event(each, grace_s(len(decision.next))) for each in events]
        return [key for key in given if key is not None]

    def _require(self, decision: Decision) -> None:
        """Refuse a move that no table allows before anything is changed."""
        run = self._t.runs[decision.notice.envelope.ticket.run]
        require(ATTEMPT, "running", decision.close.status)
        for move in decision.moves:
            require(SCOPE, "open", move.status)
        if decision.end is not None:
            require(RUN, run.status, decision.end.status)

    def _close(self, decision: Decision, now: float) -> None:
        row, outcome = self._t.attempts[decision.notice.envelope.key], decision.notice.outcome
        row.move(decision.close.status)
        row.reason, row.output, row.fault, row.ended_at = decision.close.reason, outcome.output, outcome.fault, now
        row.metadata, row.latency_s, row.answers = outcome.metadata, outcome.latency_s, decision.answers
        row.code = None if outcome.code is None else outcome.code.version
        row.input, row.model_answer = decision.failed_input, outcome.answer

    def _record_corrections(self, notice: AttemptReport, now: float) -> None:
        run, key = notice.envelope.ticket.run, notice.envelope.key
        for each in notice.outcome.corrections:
            number = len(self._t.corrections) + 1
            self._t.corrections.append(CorrectionRecord(number, when(now), run, key, notice.fence, each))

    def _make(self, decision: Decision, now: float) -> None:
        run, grace = decision.notice.envelope.ticket.run, grace_s(published(decision))
        for each in decision.next:
            key = AttemptKey(run, each.address, each.step, each.number, each.kind)
            after_s = due_after_s(each, grace)
            due = inf if after_s is None else max(now, each.until or now + after_s)
            row = StoredAttempt(key, each.kind, each.queue, due, now, each.guidance, each.question, status=each.status)
            row.units_from, row.pauses, row.waits_for = each.units_from, each.pauses, each.waits_for
            if each.fault is not None:
                row.fault, row.reason, row.ended_at = each.fault, "error", now
            self._t.add_attempt(row)

    def _give(self, run: str, left: SlotReleased) -> str | None:
        taken = self._scopes.take(run, left.fan_out, left.lane)
        for address in left.addresses if taken else ():
            self._t.scopes[run, address].lanes[left.fan_out] = NO_LANE
        return taken

    def _leave(self, run: str, end: BranchClosed) -> str | None:
        fan_out = self._t.scopes[run, end.fan_out]
        fan_out.aborted = fan_out.aborted or end.aborts
        return self._scopes.take(run, end.fan_out, end.lane) if end.takes else None
