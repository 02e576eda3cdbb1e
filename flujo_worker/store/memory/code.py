"""Records of code in memory, and runs that continue under changed code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import cast

from flujo_client.contract.carry_on import AttemptPlace, RunState, ScopePlace
from flujo_client.contract.code import (
    CODE_CHANGED,
    AwaitedCode,
    CodeOnRecord,
    CodeVersion,
    ParkCause,
    StepVersion,
    without_numbers,
)
from flujo_client.contract.envelope import AttemptKind
from flujo_client.pipeline.context_info import Fields
from flujo_client.plan.plan import Plan
from flujo_worker.domain.carry_on import PlanMove
from flujo_worker.ports import ClaimId, Member, MoveVerdict
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, when
from flujo_worker.store.memory.tables import InMemory, Tables
from flujo_worker.store.shared_rules import MAX_FORKS, fairly, story_of

_SCOPE_PLACE = attrgetter(*ScopePlace._fields)


class CodeInMemory(InMemory):
    def plan(self, fingerprint: str) -> Plan | None:
        return self._t.plans.get(fingerprint)

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:
        known = self._t.context_fields.setdefault(model, {})
        known.setdefault(digest, fields)
        return [each for other, each in known.items() if other != digest]

    def former_models(self, fingerprint: str) -> frozenset[str]:
        reference = self._t.references.get(fingerprint)
        plans = [self._t.plans[each] for each, its in self._t.references.items() if its == reference]
        mine = {each.context_model for each in plans if each.fingerprint == fingerprint}
        return frozenset(each.context_model for each in plans if each.context_model is not None) - mine

    def plans_of_run(self, run: str) -> list[tuple[str, str]]:
        fingerprints: list[str] = []
        origin: str | None = run
        for _ in range(MAX_FORKS + 1):
            row = None if origin is None else self._t.runs.get(origin)
            if row is None:
                break
            carried = [each for each in self._t.events if (each.run_id, each.name) == (origin, "run.carried_on")]
            fingerprints += [row.ticket.fingerprint, *(str(each.data["from"]) for each in reversed(carried))]
            origin = row.forked_from
        return [(each, self._t.plans[each].version) for each in fingerprints if each in self._t.plans]

    def store_code(self, versions: Sequence[CodeVersion]) -> None:
        for each in versions:
            if each.texts or each.digest not in self._t.code:
                self._t.code[each.digest] = each

    def store_code_of_steps(self, fingerprint: str, steps: Mapping[str, CodeVersion]) -> None:
        self.store_code(list(steps.values()))
        self._t.step_code.setdefault(fingerprint, {}).update({path: each.digest for path, each in steps.items()})

    def versions(self, digests: Collection[str]) -> dict[str, CodeVersion]:
        return {digest: self._t.code[digest] for digest in digests if digest in self._t.code}

    def adopt_plan(self, reference: str, plan: Plan, worker: str | None) -> None:
        started = self._t.clock() if worker is None else self._t.started.get(worker, self._t.clock())
        self._t.record_plan(reference, plan)
        self._t.since[plan.fingerprint] = max(started, self._t.since.get(plan.fingerprint, started))

    def note_plan(self, worker: str, fingerprint: str, build: str | None) -> None:  # noqa: ARG002 - nothing here reads a build
        self._t.loaded.setdefault(worker, set()).add(fingerprint)

    def code_on_record(self, run: str, fingerprint: str) -> CodeOnRecord:
        ended = [each for each in self._t.attempts_of(run) if each.ended_at is not None]
        run_code = {
            (without_numbers(each.key.address), each.key.step): self._t.code[each.code]
            for each in sorted(ended, key=attrgetter("ended_at"))
            if each.code is not None
        }
        steps = tuple(StepVersion(*place, version) for place, version in run_code.items())
        own = self._t.runs[run].ticket.fingerprint
        return CodeOnRecord(steps, self._code_of(own), self._code_of(fingerprint))

    def _code_of(self, fingerprint: str) -> dict[str, CodeVersion]:
        return {path: self._t.code[digest] for path, digest in self._t.step_code.get(fingerprint, {}).items()}


class PlanMovesInMemory(InMemory):
    def __init__(self, tables: Tables, code: CodeInMemory) -> None:
        super().__init__(tables)
        self._code = code

    def run_state(self, run: str) -> RunState | None:
        row = self._t.runs.get(run)
        if row is None:
            return None
        scopes = sorted(ScopePlace(*_SCOPE_PLACE(each)) for each in self._t.scopes_of(run))
        attempts, ticket = sorted(map(_place, self._t.attempts_of(run))), row.ticket
        plan = ticket.reference, ticket.fingerprint
        return RunState(run, *plan, row.status, ticket.root, ticket.queue, tuple(scopes), tuple(attempts))

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
        return any(each.id in able and _takes(each, queue) for each in others)

    def has_other_build(self, run: str, key: str, queue: str, *, worker: str) -> bool:
        live = (self._t.members[each] for each in self._t.leases if self._t.is_leased(each))
        mine, place = self._t.members[worker].code_build, (run, key, "attempt.lacks_module")
        reports = [each for each in self._t.events if (each.run_id, each.attempt, each.name) == place]
        has_other = any(each.code_build != mine and _takes(each, queue) for each in live)
        return has_other and all(each.data["build"] == mine for each in reports)

    def park(
        self, claim: ClaimId, reason: str, *, cause: ParkCause = CODE_CHANGED, code: AwaitedCode | None = None
    ) -> bool:
        row = self._t.given_back(claim, 0.0)
        if row is None:
            return False
        row.wait_no_more()
        run = self._t.runs[row.key.run]
        if run.status == "parked":
            return False
        run.move("parked")
        run.reason, run.awaited, run.unparked_by = reason, code, None
        run.parked = {"kind": cause.kind, "what": cause.what or reason, "at": when(self._t.clock()).isoformat()}
        self._t.add_event(row.key.run, claim.key, "run.parked", "error", {"reason": reason})
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


def _takes(member: Member, queue: str) -> bool:
    return member.slots > 0 and (member.queues is None or queue in member.queues)


def _place(row: StoredAttempt) -> AttemptPlace:
    return AttemptPlace(str(row.key), row.key.address, row.key.step, row.key.number, row.kind, row.status, row.fence)
