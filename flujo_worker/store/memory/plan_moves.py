"""Runs that continue under changed code: the port `PlanMoves` in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from flujo_client.contract.carry_on import AttemptPlace, RunState, ScopePlace
from flujo_client.contract.envelope import AttemptKind
from flujo_client.plan.plan import Plan
from flujo_worker.domain.carry_on import PlanMove
from flujo_worker.ports import MoveVerdict
from flujo_worker.store.memory.rows import StoredAttempt
from flujo_worker.store.memory.tables import Tables
from flujo_worker.store.shared_rules import story_of


class PlanMovesInMemory(Tables):
    """The port `PlanMoves`."""

    def run_state(self, run: str) -> RunState | None:
        with self._lock:
            row = self._runs.get(run)
            if row is None:
                return None
            scopes = (
                ScopePlace(each.address, each.kind, each.status, each.cursor, each.version)
                for each in self._scopes_of(run)
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
                tuple(sorted(map(_place, self._attempts_of(run)))),
            )

    def carry_on(self, reference: str, move: PlanMove) -> MoveVerdict:
        with self._lock:
            if self.run_state(move.state.run) != move.state:
                return "changed"
            run = self._runs[move.state.run]
            if move.worker is not None:
                started, since = self._started.get(move.worker), self._since[run.ticket.fingerprint]
                if started is None or started < since:
                    return "older"
            self.adopt_plan(reference, move.plan, move.worker)
            run.ticket = replace(run.ticket, fingerprint=move.plan.fingerprint)
            run.plan = move.plan
            if run.status == "parked":
                run.move("running")
                run.reason = run.awaited = None
            for scope in self._scopes_of(move.state.run):
                scope.version += scope.is_open
            self._move_attempts(move)
            level, data = story_of(move)
            self._add_event(move.state.run, None, "run.carried_on", level, data)
            return "moved"

    def adopt_plan(self, reference: str, plan: Plan, worker: str | None) -> None:
        with self._lock:
            started = self._clock() if worker is None else self._started.get(worker, self._clock())
            self._record_plan(reference, plan)
            self._since[plan.fingerprint] = max(started, self._since.get(plan.fingerprint, started))

    def note_plan(self, worker: str, fingerprint: str, build: str | None) -> None:  # noqa: ARG002 - nothing here reads a build
        with self._lock:
            self._loaded.setdefault(worker, set()).add(fingerprint)

    def has_able_worker(self, run: str, fingerprint: str | None, queue: str, *, but: str) -> bool:
        with self._lock:
            others = (self._members[each] for each in self._leases if each != but and self._is_leased(each))
            able = {worker for worker, plans in self._loaded.items() if fingerprint in plans}
            able.add(self._runs[run].unparked_by or "")
            return any(
                each.id in able and each.slots > 0 and (each.queues is None or queue in each.queues) for each in others
            )

    def has_other_build(self, run: str, key: str, queue: str, *, worker: str) -> bool:
        with self._lock:
            others = [each for each in self._leases if self._is_leased(each)]
            live = [self._members[each] for each in others if self._members[each].slots > 0]
            mine = self._members[worker].code_build
            reports = [
                each
                for each in self._events
                if (each.run_id, each.attempt, each.name) == (run, key, "attempt.lacks_module")
            ]
            return any(
                each.code_build != mine and (each.queues is None or queue in each.queues) for each in live
            ) and all(each.data["build"] == mine for each in reports)

    def _move_attempts(self, move: PlanMove) -> None:
        moved = {each.key: each for each in move.attempts}
        for row in [row for row in self._attempts_of(move.state.run) if row.is_live]:
            if row.status in ("queued", "running"):
                row.move("ready")
                row.worker, row.started_at, row.available_at = None, None, self._clock()
            change = moved.get(str(row.key))
            if change is None:
                continue
            row.queue = change.queue
            if change.begins_again:
                del self._attempts[change.key]
                row.key, row.kind, row.guidance = change.new, cast("AttemptKind", change.new.kind), None
                row.losses = row.losses_alone = row.suspicions = 0
                self._attempts[str(row.key)] = row


def _place(row: StoredAttempt) -> AttemptPlace:
    return AttemptPlace(str(row.key), row.key.address, row.key.step, row.key.number, row.kind, row.status, row.fence)
