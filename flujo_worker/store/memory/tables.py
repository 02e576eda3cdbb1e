"""The tables of the stores in memory, with the queries and changes that several stores share."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import count
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

from flujo_client.address import AttemptKey
from flujo_client.contract.admission import WAITING_S
from flujo_client.contract.approval import Approval
from flujo_client.contract.code import CodeVersion
from flujo_client.contract.envelope import Envelope, RunHeader
from flujo_client.contract.limits import Guard, GuardRow
from flujo_client.contract.outcome import Usage
from flujo_client.contract.records import CODE, CorrectionRecord, EventRecord
from flujo_client.errors import IdempotencyConflict, RunNotFound
from flujo_client.pipeline.context_info import Fields
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed
from flujo_worker.domain.admission import GateState
from flujo_worker.domain.budget import Budget
from flujo_worker.domain.units import RecordedUnit, UnitName
from flujo_worker.domain.values import ChildRun
from flujo_worker.ports import ClaimId, HumanAnswer, Member
from flujo_worker.store.memory import rows
from flujo_worker.store.memory.rows import recorded, when
from flujo_worker.store.shared_rules import grace_s

P = ParamSpec("P")
T = TypeVar("T")


class Tables:
    """The tables of Postgres, as dictionaries. One lock makes each act one commit; `clock` returns the time in unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.runs: dict[str, rows.StoredRun] = {}
        self.scopes: dict[tuple[str, str], rows.StoredScope] = {}
        self.children: defaultdict[tuple[str, str], list[rows.StoredScope]] = defaultdict(list)
        self.attempts: dict[str, rows.StoredAttempt] = {}
        self.rows_at: defaultdict[tuple[str, str], list[rows.StoredAttempt]] = defaultdict(list)
        self.contexts: dict[tuple[str, int], Packed | None] = {}
        self.leases: dict[str, float] = {}
        self.members: dict[str, Member] = {}
        self.blobs: dict[str, Packed] = {}
        self.touched: dict[str, float] = {}
        self.plans: dict[str, Plan] = {}
        self.references: dict[str, str] = {}
        self.loaded: dict[str, set[str]] = {}
        self.since: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.code: dict[str, CodeVersion] = {}
        self.step_code: dict[str, dict[str, str]] = {}
        self.context_fields: dict[str, dict[str, Fields]] = {}
        self.epochs: dict[str, float] = {}
        self.spends: dict[ClaimId, Usage] = {}
        self.units: dict[tuple[str, UnitName], RecordedUnit] = {}
        self.batch_requests: dict[str, rows.StoredRequest] = {}
        self.unit_times: dict[tuple[str, UnitName], tuple[float, float | None]] = {}
        self.sent_events: dict[tuple[str, str, str], rows.StoredEvent] = {}
        self.budgets: dict[str, Budget] = {}
        self.reservations: dict[str, dict[str, rows.StoredReservation]] = {}
        self.events: list[EventRecord] = []
        self.last_event = 0
        self.guards: dict[tuple[Guard, str], GuardRow] = {}
        self.limits: dict[str, int] = {}
        self.permits: dict[str, rows.StoredPermit] = {}
        self.last_turn = 0
        self.corrections: list[CorrectionRecord] = []
        self.owed: dict[tuple[str, str, str], rows.TakenCall] = {}
        self.swept_at = float("-inf")
        self.places: dict[str, dict[str, float]] = {}
        self.waiting_runs: dict[str, rows.StoredWait] = {}
        self.turns: dict[str, GateState] = {}
        self.arrivals = count()

    def run(self, run_id: str) -> rows.StoredRun:
        if run_id not in self.runs:
            raise RunNotFound(f"no run '{run_id}'")
        return self.runs[run_id]

    def record_plan(self, reference: str, plan: Plan) -> None:
        self.plans[plan.fingerprint] = plan
        self.references.setdefault(plan.fingerprint, reference)

    def add_scope(self, run: str, scope: rows.StoredScope) -> None:
        self.scopes[run, scope.address] = scope
        if scope.parent is not None:
            self.children[run, scope.parent].append(scope)

    def add_attempt(self, row: rows.StoredAttempt) -> None:
        self.attempts[str(row.key)] = row
        self.rows_at[row.key.run, row.key.address].append(row)
        if row.status == "paused" and row.event is None:
            self.owe(row.key.run, "on_pause_requested", str(row.key))

    def owe(self, run: str, payload: str, attempt: str = "") -> None:
        """Record a hook call to be made, in a pipeline that has any hooks."""
        if self.runs[run].plan.hooks:
            self.owed.setdefault((run, payload, attempt), rows.TakenCall())

    def keep(self, blobs: Iterable[Packed]) -> None:
        """Store large values; those that are there are touched."""
        for blob in blobs:
            self.blobs[blob.digest], self.touched[blob.digest] = blob, self.clock()

    def attempts_of(self, run: str) -> Iterator[rows.StoredAttempt]:
        return (row for row in self.attempts.values() if row.key.run == run)

    def family_of(self, run: str) -> Iterator[rows.StoredAttempt]:
        """Yield the attempts of a run and of the child runs that it waits for."""
        yield from self.attempts_of(run)
        for child in self.child_runs_of(run):
            if not child.is_background:
                yield from self.family_of(child.ticket.run)

    def give_event(self, event: rows.StoredEvent, grace_s: float = 0.0) -> str | None:
        """Give an event to the step that has waited for it longest; return the key of that attempt, None if no step waits."""
        waiting = [row for row in self.family_of(event.run) if row.status == "paused" and row.event == event.name]
        row = min(waiting, key=lambda each: (each.created_at, str(each.key)), default=None)
        if row is None:
            return None
        event.is_over, now = True, self.clock()
        row.move("ready")
        row.available_at = now + grace_s
        row.answer = HumanAnswer(event.value, None, event.id, event.at, now - row.created_at)
        data = {"step": row.key.step, "event": event.name, "id": event.id}
        self.add_event(row.key.run, str(row.key), "run.event_received", "info", data)
        return str(row.key)

    def approval(self, row: rows.StoredAttempt) -> Approval:
        run = self.runs[row.key.run]
        status = "cancelled" if run.is_live and run.stopped_at is not None else run.status
        status = "expired" if run.is_live and self.is_over(run) else status
        return row.approval(run.name, status, self.clock())

    def scopes_of(self, run: str) -> Iterator[rows.StoredScope]:
        return (scope for (owner, _), scope in self.scopes.items() if owner == run)

    def children_of(self, run: str, address: str) -> list[rows.StoredScope]:
        return sorted(self.children.get((run, address), ()), key=lambda scope: scope.place)

    def child_runs_of(self, run: str, address: str | None = None) -> list[rows.StoredRun]:
        """Return the child runs of a run, or those that were begun at one place in it."""
        children = [each for each in self.runs.values() if each.parent_run == run]
        return [each for each in children if address is None or each.parent_address == address]

    def spent_by(self, run: str) -> list[Usage]:
        """Return what a run has spent, with its child runs except those in the background."""
        own = [usage for (key, _, _), usage in self.spends.items() if AttemptKey.parse(key).run == run]
        waited_for = [child for child in self.child_runs_of(run) if not child.is_background]
        return own + [usage for child in waited_for for usage in self.spent_by(child.ticket.run)]

    def named(self, ticket: RunHeader, digest: str) -> str | None:
        """Return the run that was recorded under an id; raise IdempotencyConflict if it is other work."""
        run = self.runs.get(ticket.run)
        if run is None:
            return None
        if (run.ticket.tenant, run.digest) != (ticket.tenant, digest):
            raise IdempotencyConflict(f"run {ticket.run} exists, and is other work")
        return ticket.run

    def under(self, tenant: str, key: str | None, digest: str) -> str | None:
        """Return the run that was recorded under an idempotency key; raise IdempotencyConflict if it is other work."""
        for run in self.runs.values() if key is not None else ():
            if (run.ticket.tenant, run.idempotency_key) == (tenant, key):
                if run.digest != digest:
                    raise IdempotencyConflict(f"idempotency key '{key}' is already used for other work")
                return run.ticket.run
        return None

    def is_leased(self, worker: str | None) -> bool:
        return worker is not None and self.leases.get(worker, 0.0) > self.clock()

    def is_over(self, run: rows.StoredRun) -> bool:
        return run.ticket.deadline is not None and run.ticket.deadline <= self.clock()

    def may_run(self, run: rows.StoredRun) -> bool:
        return run.status in ("queued", "running") and run.stopped_at is None and not self.is_over(run)

    def replace(self, run: str, reason: str, *, by: str) -> None:
        row = self.runs[run]
        row.replaced_by = by
        row.asked, row.note, row.stopped_at = True, row.note or reason, row.stopped_at or self.clock()
        self.add_event(run, None, "run.cancel_requested", "warning", {"reason": row.note})

    def may_merge(self, run: rows.StoredRun) -> bool:
        return run.is_live and run.stopped_at is None

    def is_held_back(self, row: rows.StoredAttempt) -> bool:
        """Return whether an attempt waits for a lane, or its run at a gate."""
        return row.status in ("ready", "queued") and row.available_at > self.clock() + WAITING_S / 2

    def is_lost(self, row: rows.StoredAttempt) -> bool:
        return row.status == "running" and not self.is_leased(row.worker) and self.may_merge(self.runs[row.key.run])

    def mark(self, row: rows.StoredAttempt, sent_at: float) -> None:
        row.move("queued")
        row.sent_at, row.sends = sent_at, row.sends + 1

    def envelope(self, row: rows.StoredAttempt) -> Envelope:
        scope = self.scopes[row.key.run, row.key.address]
        own = {"input": scope.output, "lanes": dict(scope.lanes), "code": tuple(scope.metadata.get(CODE, ()))}
        return recorded(Envelope, row, row.key, scope, ticket=self.runs[row.key.run].ticket, **own)

    def add_event(
        self, run: str | None, key: str | None, name: str, level: str, data: dict[str, Any], at: float | None = None
    ) -> None:
        number = self.last_event = self.last_event + 1
        event_at = when(self.clock() if at is None else at)
        self.events.append(EventRecord(number, event_at, run, name, level, key, data, f"0-{number}"))

    def add_republish_event(self, row: rows.StoredAttempt, why: str) -> None:
        run, key = row.key.run, str(row.key)
        if why == "lost":
            losses = {"losses": row.losses, "losses_alone": row.losses_alone}
            self.add_event(run, key, "attempt.lost", "warning", {"worker": row.worker, **losses})
        elif why != "ready":
            self.add_event(run, key, "attempt.sent_again", "info", {"why": why, "sends": row.sends})

    def given_back(self, claim: ClaimId, delay_s: float) -> rows.StoredAttempt | None:
        row = self.attempts.get(claim.key)
        if row is None or row.status != "running" or not row.is_under(claim.fence, claim.claim_id):
            return None
        row.move("ready")
        row.worker, row.started_at, row.available_at = None, None, self.clock() + delay_s
        return row

    def begin_child(self, parent: str, begun: ChildRun, now: float) -> None:
        first = begun.first
        self.runs[begun.run] = self.runs[parent].child(begun, now)
        root = rows.StoredScope(first.address, first.input, first.context, now, version=first.version)
        self.add_scope(begun.run, root)
        key = AttemptKey(begun.run, first.address, first.step, first.number, first.kind)
        self.add_attempt(rows.StoredAttempt(key, first.kind, first.queue, now + grace_s(1), now))


class InMemory:
    """A small store over the tables: `LeasesInMemory` is the port `LeaseStore`, and so on. Each of its public methods is one commit."""

    def __init__(self, tables: Tables) -> None:
        self._t = tables

    def __init_subclass__(cls) -> None:
        for name, act in list(vars(cls).items()):
            if isinstance(act, FunctionType) and not name.startswith("_"):
                setattr(cls, name, _locked(act))


def _locked(act: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    @wraps(act)
    def locked(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._t.lock:
            return act(self, *args, **kwargs)

    return locked
