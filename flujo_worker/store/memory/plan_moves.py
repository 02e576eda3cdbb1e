"""Runs that continue under changed code, in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import cast

from flujo_client.contract.carry_on import AttemptPlace, RunState, ScopePlace
from flujo_client.contract.code import CODE_CHANGED, AwaitedCode, ParkCause
from flujo_client.contract.envelope import AttemptKind
from flujo_worker.domain.carry_on import PlanMove
from flujo_worker.ports import MoveVerdict
from flujo_worker.store.memory.code import CodeInMemory
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, when
from flujo_worker.store.memory.tables import InMemory, Tables
from flujo_worker.store.shared_rules import fairly, story_of


class PlanMovesInMemory(InMemory):
    """The port `PlanMoveStore`."""

    def __init__(self, tables: Tables, code: CodeInMemory) -> None:
        super().__init__(tables)
        self._code = code

    def run_state(self, run: str) -> RunState | None:
        row = self._t.runs.get(run)
        if row is None:
            return None
        scopes = (
            ScopePlace(each.address, each.kind, each.status, each.cursor, each.version)
            for each in self._t.scopes_of(run)
        )
        ticket = row.ticket
        return RunState(
            run,
            ticket.reference,
            ticket.fingerprint,
            row.status,
            ticket.root,
            ticket.queue,
            tuple(sorted(scopes)),
            tuple(sorted(map(_place, self._t.attempts_of(run)))),
        )

    def carry_on(self, reference: str, move: PlanMove) -> MoveVerdict:
        if self.run_state(move.state.run) != move.state:
            return "changed"
        run = self._t.runs[move.state.run]
        if move.worker is not None:
            started, since = self._t.started.get(move.worker), self._t.since[run.ticket.fingerprint]
            if started is None or started < since:
                return "older"
        self._code.adopt_plan(reference, move.plan, move.worker)
        run.ticket = replace(run.ticket, fingerprint=move.plan.fingerprint)
        run.plan = move.plan
        if run.status == "parked":
            run.move("running")
            run.reason = run.awaited = run.parked = None
        for scope in self._t.scopes_of(move.state.run):
            scope.version += scope.is_open
        self._move_attempts(move)
        level, data = story_of(move)
        self._t.add_event(move.state.run, None, "run.carried_on", level, data)
        return "moved"

    def has_able_worker(self, run: str, fingerprint: str | None, queue: str, *, but: str) -> bool:
        others = (self._t.members[each] for each in self._t.leases if each != but and self._t.is_leased(each))
        able = {worker for worker, plans in self._t.loaded.items() if fingerprint in plans}
        able.add(self._t.runs[run].unparked_by or "")
        return any(
            each.id in able and each.slots > 0 and (each.queues is None or queue in each.queues) for each in others
        )

    def has_other_build(self, run: str, key: str, queue: str, *, worker: str) -> bool:
        others = [each for each in self._t.leases if self._t.is_leased(each)]
        live = [self._t.members[each] for each in others if self._t.members[each].slots > 0]
        mine = self._t.members[worker].code_build
        reports = [
            each
            for each in self._t.events
            if (each.run_id, each.attempt, each.name) == (run, key, "attempt.lacks_module")
        ]
        return any(each.code_build != mine and (each.queues is None or queue in each.queues) for each in live) and all(
            each.data["build"] == mine for each in reports
        )

    def park(
        self,
        key: str,
        fence: int,
        reason: str,
        *,
        cause: ParkCause = CODE_CHANGED,
        code: AwaitedCode | None = None,
        claim_id: str | None = None,
    ) -> bool:
        row = self._t.given_back(key, fence, claim_id, 0.0)
        if row is None:
            return False
        row.wait_no_more()
        run = self._t.runs[row.key.run]
        if run.status == "parked":
            return False
        run.move("parked")
        run.reason, run.awaited, run.unparked_by = reason, code, None
        run.parked = {"kind": cause.kind, "what": cause.what or reason, "at": when(self._t.clock()).isoformat()}
        self._t.add_event(row.key.run, key, "run.parked", "error", {"reason": reason})
        return True

    def parked(self, limit: int, but: Collection[str] = ()) -> list[tuple[str, str, str]]:
        tickets = [run.ticket for run in self._parked() if run.awaited is None and run.ticket.run not in but][:limit]
        return [(ticket.run, ticket.reference, ticket.fingerprint) for ticket in tickets]

    def parked_for_code(self, limit: int) -> list[tuple[str, str, str, AwaitedCode]]:
        found = [(run.ticket, run.awaited) for run in self._parked() if run.awaited is not None][:limit]
        return [(ticket.run, ticket.reference, ticket.fingerprint, awaited) for ticket, awaited in found]

    def unpark(self, run: str, worker: str) -> bool:
        row = self._t.runs.get(run)
        if row is None or row.status != "parked":
            return False
        row.move("running")
        row.reason = row.awaited = row.parked = None
        row.unparked_by = worker
        self._t.add_event(run, None, "run.unparked", "info", {})
        return True

    def _move_attempts(self, move: PlanMove) -> None:
        moved = {each.key: each for each in move.attempts}
        for row in [row for row in self._t.attempts_of(move.state.run) if row.is_live]:
            if row.status in ("queued", "running"):
                row.move("ready")
                row.worker, row.started_at, row.available_at = None, None, self._t.clock()
            change = moved.get(str(row.key))
            if change is None:
                continue
            row.queue = change.queue
            if change.begins_again:
                del self._t.attempts[change.key]
                row.key, row.kind = change.new, cast("AttemptKind", change.new.kind)
                row.guidance = row.units_from = None
                row.losses, row.losses_alone, row.suspicions, row.pauses, row.loss = 0, 0, 0, 0, None
                self._t.attempts[str(row.key)] = row

    def _parked(self) -> list[StoredRun]:
        parked = (run for run in self._t.runs.values() if run.status == "parked")
        return fairly(parked, lambda run: (run.ticket.reference, run.ticket.fingerprint))


def _place(row: StoredAttempt) -> AttemptPlace:
    return AttemptPlace(str(row.key), row.key.address, row.key.step, row.key.number, row.kind, row.status, row.fence)
