"""Operations of attempts and the coordinator on the store in memory: claims, commits, parking and stopping."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Literal
from uuid import uuid4

from flujo_client.address import AttemptKey
from flujo_client.contract.code import AwaitedCode
from flujo_client.contract.outcome import NO_USAGE, Event, Fault, Usage
from flujo_client.contract.records import CorrectionRecord
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.budget import Reservation
from flujo_worker.domain.transitions import ATTEMPT, RUN, SCOPE, require
from flujo_worker.domain.values import AttemptReport, BranchClosed, ChildRun, Decision, SlotReleased, UpdateScope
from flujo_worker.ports import Claim, Committed, PlanName, Refusal, Reply, Room, Verdict
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.rows import ClaimId, StoredAttempt, StoredScope, when
from flujo_worker.store.shared_rules import SUSPECT_AFTER, given_lanes, grace_s, held_branches, published


class LedgerInMemory(BudgetsInMemory):
    """The port `Ledger`."""

    def claim(  # noqa: PLR0913 - one for each condition of a claim
        self,
        key: str,
        worker: str,
        *,
        max_lost: int,
        may_judge: bool = True,
        fan_outs: Sequence[str] = (),
        to_reserve: Sequence[Reservation] = (),
        room: Room = "shared",
        plan: PlanName | None = None,
    ) -> Claim:
        with self._lock:
            row = self._attempts.get(key)
            if row is None:
                return Claim(refusal="unknown")
            ticket = self._runs[row.key.run].ticket
            if plan is not None and plan != (ticket.reference, ticket.fingerprint):
                return Claim(refusal="moved" if plan.reference == ticket.reference else "mismatched")
            refusal = self._refusal(row, worker, room, max_lost=max_lost, may_judge=may_judge)
            if refusal is None:
                self._begin(row, worker, room)
            if refusal == "suspect":
                return Claim(refusal=refusal, in_company=row.losses - row.losses_alone)
            mine = refusal == "busy" and row.worker == worker
            fence = row.fence if refusal is None or mine else None
            over = None if fence is None else self._reserve(key, to_reserve)
            return Claim(
                fence,
                refusal,
                aborted=fence is not None and bool(self.aborted_among([(row.key.run, each) for each in fan_outs])),
                over=over,
                claim_id=None if fence is None else row.claim_id,
            )

    def locked_among(self, keys: Sequence[str]) -> set[str]:  # noqa: ARG002 - there is no other transaction
        return set()

    def locked_budgets(self, scopes: Collection[str]) -> set[str]:  # noqa: ARG002 - likewise
        return set()

    def lock_holders(self) -> tuple[str, ...]:
        return ()

    def commit(self, decision: Decision) -> Committed:
        with self._lock:
            verdict = self._judge(decision)
            envelope, outcome, end = decision.notice.envelope, decision.notice.outcome, decision.branch_end
            taken = breach = None
            if verdict == "merged":
                taken = self._apply(decision)
                breach = self._settle_merged(decision)
            elif verdict == "repeated" and end is not None:
                taken = self._after_in_lane(envelope.ticket.run, self._scopes[envelope.ticket.run, end.address])
            if verdict != "merged":
                notice = decision.notice
                self.spend(envelope.ticket.run, envelope.key, notice.fence, outcome.usage, claim_id=notice.claim_id)
            claim_id, over = self._claim_next(decision) if verdict == "merged" and breach is None else (None, None)
            return Committed(verdict, taken, breach, claim_id, over)

    def _claim_next(self, decision: Decision) -> tuple[str | None, Fault | None]:
        run = self._runs[decision.notice.envelope.ticket.run]
        for each in decision.next:
            if each.claimed_by and self._is_leased(each.claimed_by) and run.status == "running" and self._may_run(run):
                row = self._attempts[each.key_in(run.ticket.run)]
                self._begin(row, each.claimed_by, "shared")
                return row.claim_id, self._reserve(str(row.key), each.to_reserve)
        return None, None

    def _settle_merged(self, decision: Decision) -> Fault | None:
        notice = decision.notice
        run, key, outcome = notice.envelope.ticket.run, notice.envelope.key, notice.outcome
        claim = ClaimId(key, notice.fence, notice.claim_id)
        breach = self._settle(run, claim, outcome.usage, frees=outcome.kind != "lost")
        if decision.end is not None:
            self._release(run)
        return breach

    def spend(self, run: str, key: str, fence: int, usage: Usage, *, claim_id: str | None = None) -> None:
        with self._lock:
            row = self._attempts.get(key)
            if row is not None and not usage.is_nothing:
                self._settle(run, ClaimId(key, fence, claim_id), usage, frees=not row.is_live)

    def spent_lately(self, reference: str, runs: int) -> list[tuple[str, Usage]]:
        with self._lock:
            known = [run for run in self._runs.values() if run.ticket.reference == reference]
            lately = {run.ticket.run for run in sorted(known, key=lambda run: -run.created_at)[:runs]}
            spent: dict[str, Usage] = {}
            for (key, _, _), usage in self._spends.items():
                if AttemptKey.parse(key).run in lately:
                    spent[key] = spent.pop(key, NO_USAGE) + usage
            return list(reversed(spent.items()))

    def park(
        self, key: str, fence: int, reason: str, *, code: AwaitedCode | None = None, claim_id: str | None = None
    ) -> bool:
        with self._lock:
            row = self._given_back(key, fence, claim_id, 0.0)
            if row is None:
                return False
            run = self._runs[row.key.run]
            if run.status == "parked":
                return False
            run.move("parked")
            run.reason, run.awaited, run.unparked_by = reason, code, None
            self._add_event(row.key.run, key, "run.parked", "error", {"reason": reason})
            return True

    def defer(
        self,
        key: str,
        fence: int,
        delay_s: float,
        event: Event | None = None,
        *,
        waits_for: str | None = None,
        claim_id: str | None = None,
    ) -> bool:
        with self._lock:
            row = self._given_back(key, fence, claim_id, delay_s)
            if row is None:
                return False
            row.waits_for = waits_for
            if not row.losses:
                self._unreserve(key)
            if event and not any((each.attempt, each.name) == (key, event.name) for each in self._events):
                self._add_event(row.key.run, key, event.name, event.level, event.data)
            return True

    def return_starved(
        self, key: str, fence: int, delay_s: float, event: Event, *, most: int, claim_id: str | None = None
    ) -> bool:
        with self._lock:
            times = 1 + sum((each.attempt, each.name) == (key, event.name) for each in self._events)
            row = None if times > most else self._given_back(key, fence, claim_id, delay_s)
            if row is None:
                return False
            row.sends, row.waits_for = 0, None
            self._add_event(row.key.run, key, event.name, event.level, {**event.data, "times": times})
            return True

    def postpone(self, key: str, delay_s: float) -> None:
        with self._lock:
            row = self._attempts.get(key)
            if row is not None and row.status == "queued":
                row.move("ready")
                row.sends, row.available_at = 0, self._clock() + delay_s

    def _given_back(self, key: str, fence: int, claim_id: str | None, delay_s: float) -> StoredAttempt | None:
        row = self._attempts.get(key)
        if row is None or row.status != "running" or not row.is_under(fence, claim_id):
            return None
        row.move("ready")
        row.worker, row.started_at, row.available_at = None, None, self._clock() + delay_s
        return row

    def stop(self, run: str, status: Literal["cancelled", "expired", "failed"], reason: str) -> bool:
        with self._lock:
            row, now = self._runs.get(run), self._clock()
            if row is None or not row.is_live:
                return False
            for attempt in self._attempts_of(run):
                if attempt.is_live:
                    attempt.cancel(status, now)
            for scope in self._scopes_of(run):
                if scope.is_open:
                    scope.wind_down(status, now)
            row.move(status)
            row.reason, row.ended_at, row.stopped_at = row.note or reason, now, row.stopped_at or now
            self._release(run)
            self._owe(run, "post_run")
            self._add_event(run, None, f"run.{status}", "warning", {"reason": row.reason})
            return True

    def store_blobs(self, blobs: Sequence[Packed]) -> None:
        with self._lock:
            self._keep(blobs)

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        with self._lock:
            return {digest: self._blobs[digest] for digest in digests if digest in self._blobs}

    def reply(self, key: str) -> Reply | None:
        with self._lock:
            row = self._attempts.get(key)
            return None if row is None or row.question is None else Reply(row.question, row.answer)

    def replies(self, run: str, address: str, step: str) -> list[Reply]:
        with self._lock:
            at = (run, address, step)
            rows = [row for row in self._attempts.values() if (row.key.run, row.key.address, row.key.step) == at]
            rows.sort(key=lambda row: row.key.number)
            return [
                Reply(row.question, row.answer) for row in rows if row.question is not None and row.answer is not None
            ]

    def plan(self, fingerprint: str) -> Plan | None:
        with self._lock:
            return self._plans.get(fingerprint)

    def note(self, run: str | None, events: Sequence[Event], *, key: str | None = None) -> None:
        with self._lock:
            for event in events:
                self._add_event(run, key, event.name, event.level, event.data, event.at)

    def _refusal(
        self, row: StoredAttempt, worker: str, room: Room, *, max_lost: int, may_judge: bool
    ) -> Refusal | None:
        run = self._runs[row.key.run]
        if not row.is_live or row.status == "paused":
            return "ended"
        if run.status == "parked":
            return "parked"
        if not self._may_run(run):
            return "stopped"
        if not self._is_leased(worker):
            return "unleased"
        is_running = row.status == "running"
        if is_running and (self._is_leased(row.worker) or row.is_poison(max_lost)):
            return "busy"
        if room == "shared" and row.losses + row.suspicions + is_running >= SUSPECT_AFTER:
            return "suspect"
        return "busy" if is_running and not may_judge else None

    def _begin(self, row: StoredAttempt, worker: str, room: Room) -> None:
        if row.status == "running":
            row.lose()
        row.move("running")
        row.alone = room == "alone"
        row.fence, row.claim_id, row.worker = row.fence + 1, str(uuid4()), worker
        row.started_at = self._clock()
        run = self._runs[row.key.run]
        if run.status == "queued":
            run.move("running")
            run.started_at = self._clock()

    def _judge(self, decision: Decision) -> Verdict:
        notice, close = decision.notice, decision.close
        row = self._attempts.get(notice.envelope.key)
        if row is None:
            return "stale"
        run = self._runs[row.key.run]
        is_own = row.is_under(notice.fence, notice.claim_id)
        if is_own and (row.status, row.reason) == (close.status, close.reason):
            return "repeated"
        if run.stopped_at is not None or run.status in ("cancelled", "expired"):
            return "stopped"
        holds = is_own and row.status == "running"
        return "merged" if holds and all(self._is_current(row.key.run, move) for move in decision.moves) else "stale"

    def _is_current(self, run: str, move: UpdateScope) -> bool:
        scope = self._scopes.get((run, move.address))
        return scope is not None and scope.is_open and scope.version == move.version

    def _apply(self, decision: Decision) -> str | None:
        run, key, now = decision.notice.envelope.ticket.run, decision.notice.envelope.key, self._clock()
        self._require(decision)
        self._close(decision, now)
        for move in decision.moves:
            self._scopes[run, move.address].move(move, key, now)
        held = held_branches(decision)
        for opening in decision.opens:
            self._add_scope(run, StoredScope.opened(opening, given_lanes(opening, held), key, now))
        self._make(decision, now)
        for begun in decision.begun:
            self._contexts.setdefault((run, begun.place), begun.context)
        if decision.child_run is not None:
            self._begin_child(run, decision.child_run, now)
        taken = None if decision.branch_end is None else self._leave(run, decision.branch_end)
        taken = taken if decision.lane_left is None else self._give(run, decision.lane_left)
        for event in (*decision.notice.outcome.events, *decision.events):
            self._add_event(run, key, event.name, event.level, event.data, event.at)
        self._record_corrections(decision.notice, now)
        if decision.end is not None:
            self._runs[run].end(decision.end, now)
            self._runs[run].ended_by = key
            self._owe(run, "post_run")
        return taken

    def _require(self, decision: Decision) -> None:
        """Refuse a move that no table allows before anything is changed."""
        run = self._runs[decision.notice.envelope.ticket.run]
        require(ATTEMPT, "running", decision.close.status)
        for move in decision.moves:
            require(SCOPE, "open", move.status)
        if decision.end is not None:
            require(RUN, run.status, decision.end.status)

    def _close(self, decision: Decision, now: float) -> None:
        row, outcome = self._attempts[decision.notice.envelope.key], decision.notice.outcome
        row.move(decision.close.status)
        row.reason, row.output, row.fault, row.ended_at = decision.close.reason, outcome.output, outcome.fault, now
        row.metadata, row.latency_s, row.answers = outcome.metadata, outcome.latency_s, decision.answers
        row.code = None if outcome.code is None else outcome.code.version

    def _record_corrections(self, notice: AttemptReport, now: float) -> None:
        run, key = notice.envelope.ticket.run, notice.envelope.key
        for each in notice.outcome.corrections:
            number = len(self._corrections) + 1
            self._corrections.append(CorrectionRecord(number, when(now), run, key, notice.fence, each))

    def _make(self, decision: Decision, now: float) -> None:
        run, grace = decision.notice.envelope.ticket.run, grace_s(published(decision))
        for each in decision.next:
            key = AttemptKey(run, each.address, each.step, each.number, each.kind)
            waits = each.held or (each.question is not None and not each.delay_s)
            available = inf if waits else now + (each.delay_s or grace)
            row = StoredAttempt(
                key, each.kind, each.queue, available, now, each.guidance, each.question, status=each.status
            )
            if each.fault is not None:
                row.fault, row.reason, row.ended_at = each.fault, "error", now
            self._add_attempt(row)

    def _begin_child(self, parent: str, begun: ChildRun, now: float) -> None:
        first = begun.first
        self._runs[begun.run] = self._runs[parent].child(begun, now)
        self._add_scope(begun.run, StoredScope(first.address, first.input, first.context, now))
        key = AttemptKey(begun.run, first.address, first.step, first.number, first.kind)
        self._add_attempt(StoredAttempt(key, first.kind, first.queue, now + grace_s(1), now))

    def _give(self, run: str, left: SlotReleased) -> str | None:
        taken = None if self._scopes[run, left.fan_out].aborted else self._take(run, left.fan_out, left.lane)
        for address in left.addresses if taken else ():
            self._scopes[run, address].lanes[left.fan_out] = NO_LANE
        return taken

    def _leave(self, run: str, end: BranchClosed) -> str | None:
        fan_out = self._scopes[run, end.fan_out]
        fan_out.aborted = fan_out.aborted or end.aborts
        return self._take(run, end.fan_out, end.lane) if end.takes and not fan_out.aborted else None
